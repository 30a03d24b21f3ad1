"""What a site trained, as its ranks wrote it down (runtime/metrics_log.h): each life's tokens, from where it took up."""


def trained_and_open(lines, last_named, tokens_of_step):
    """Tokens trained in all lives; and of them those that came after the contribution to outer step `last_named`, the
    last one that names the site: no record can tell of them."""
    trained = at = 0
    named_at = None
    for line in lines:
        if "tokens" not in line:
            continue
        now = line["tokens"]
        if line["kind"] == "resumed":
            pass
        elif now < at:
            # The first line of a life found no room on the disk: it took up a step before the next one, at least.
            trained += tokens_of_step if line["kind"] == "inner_step" else 0
        else:
            trained += now - at
        at = now
        if line["kind"] == "contribution" and line["outer_step"] <= last_named:
            named_at = trained
    return trained, trained - (named_at or 0)


def unwritten_max(full_disks, inner_steps, tokens_of_step):
    """While a disk is full a line may be lost, and with a kill then all that follows the last one; but nothing is
    contributed either, so ranks come no further than what they are ahead, twice: before and after."""
    return full_disks * 2 * inner_steps * tokens_of_step
