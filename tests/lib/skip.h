/* tests/lib/skip.h - ends a test that cannot be done here, with the reason.
 * (What cmocka's skip() prints, "not ok N # SKIP", is a failure to prove.) */
#ifndef TEST_SKIP_H
#define TEST_SKIP_H

#define SKIP(reason)                                                           \
    do {                                                                       \
        print_message("# SKIP %s: %s\n", __func__, reason);                    \
        return;                                                                \
    } while (0)

#endif
