"""What a site trained, as its ranks wrote it down (runtime/metrics_log.h): each life's tokens, from where it took up."""


def trained_and_open(lines, last_named):
    """Tokens trained in all lives; and of them those that came after the contribution to outer step `last_named`, the
    last one that names the site: no record can tell of them."""
    trained = at = 0
    named_at = None
    for line in lines:
        if "tokens" not in line:
            continue
        if line["kind"] != "resumed":
            trained += line["tokens"] - at
        at = line["tokens"]
        if line["kind"] == "contribution" and line["outer_step"] <= last_named:
            named_at = trained
    return trained, trained - (named_at or 0)
