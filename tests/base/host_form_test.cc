#include "base/host_form.h"

#include <gtest/gtest.h>

#include <string>

namespace isthmus {
namespace {

TEST(HostForm, IsKnownFromTheTextAlone) {
  for (const char* name : {"localhost", "alpha.example", "eth0", "4u.example", "a_b"})
    EXPECT_EQ(form_of_host(name), HostForm::name) << name;
  for (const char* number : {"10.0.0.1", "127.0.0.1", "::1", "2001:db8::1", "::ffff:10.0.0.1"})
    EXPECT_EQ(form_of_host(number), HostForm::number) << number;
  for (const char* every : {"*", "0.0.0.0", "::", "0::0"})
    EXPECT_EQ(form_of_host(every), HostForm::every) << every;
  for (const char* link_local : {"fe80::1", "fe80::1%eth0", "febf::1", "::1%lo"})
    EXPECT_EQ(form_of_host(link_local), HostForm::link_local) << link_local;
  for (const char* none : {"", "300.1.1.1", "1.2.3", "1.2.3.4.5", "1::2::3", "fe80:::1%eth0",
                           "a..b", "-gate", ".a", "eth0%1"})
    EXPECT_EQ(form_of_host(none), HostForm::none) << none;
  EXPECT_EQ(form_of_host(std::string(253, 'a')), HostForm::name);
  EXPECT_EQ(form_of_host(std::string(254, 'a')), HostForm::none);
}

}  // namespace
}  // namespace isthmus
