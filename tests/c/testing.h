/* testing.h - all that a C test needs. A test file is a list of TEST(name) { ... } and
 * one TEST_MAIN(). A failed check prints where and what, and leaves its test; the others
 * run on. With arguments, only tests whose name contains one of them run. */
#ifndef TA_TESTING_H
#define TA_TESTING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ta_test {
    const char *name;
    void (*run)(void);
    struct ta_test *next;
} ta_test;

static ta_test *ta_tests, **ta_tests_end = &ta_tests;
static int ta_test_failed;

#define TEST(NAME)                                                                       \
    static void test_##NAME(void);                                                       \
    __attribute__((constructor)) static void add_##NAME(void)                            \
    {                                                                                    \
        static ta_test test = {#NAME, test_##NAME, NULL};                                \
        *ta_tests_end = &test;                                                           \
        ta_tests_end = &test.next;                                                       \
    }                                                                                    \
    static void test_##NAME(void)

#define TA_TEST_FAIL(...)                                                                \
    do {                                                                                 \
        printf("%s:%d: ", __FILE__, __LINE__);                                           \
        printf(__VA_ARGS__);                                                             \
        printf("\n");                                                                    \
        ta_test_failed = 1;                                                              \
        return;                                                                          \
    } while (0)

/* All checks return from the function they stand in: in helpers, look at
 * ta_test_failed afterwards where that matters. */
#define CHECK(CONDITION)                                                                 \
    do {                                                                                 \
        if (!(CONDITION)) TA_TEST_FAIL("%s is false", #CONDITION);                       \
    } while (0)
/* Two integers (or pointers cast to one); both sides are printed. */
#define CHECK_EQ(A, B)                                                                   \
    do {                                                                                 \
        long long a_ = (long long)(A), b_ = (long long)(B);                              \
        if (a_ != b_) TA_TEST_FAIL("%s is %lld, %s is %lld", #A, a_, #B, b_);            \
    } while (0)
#define CHECK_STR(A, B)                                                                  \
    do {                                                                                 \
        const char *a_ = (A), *b_ = (B);                                                 \
        if (strcmp(a_, b_) != 0) TA_TEST_FAIL("%s is \"%s\", not \"%s\"", #A, a_, b_);   \
    } while (0)

#define TEST_MAIN()                                                                      \
    int main(int argc, char **argv)                                                      \
    {                                                                                    \
        int passed = 0, failed = 0;                                                      \
        setvbuf(stdout, NULL, _IOLBF, 0);                                                \
        for (ta_test *t = ta_tests; t; t = t->next) {                                    \
            int wanted = argc < 2;                                                       \
            for (int i = 1; i < argc; i++) wanted |= strstr(t->name, argv[i]) != NULL;   \
            if (!wanted) continue;                                                       \
            ta_test_failed = 0;                                                          \
            t->run();                                                                    \
            if (ta_test_failed) printf("FAILED %s\n", t->name);                          \
            ta_test_failed ? failed++ : passed++;                                        \
        }                                                                                \
        printf("%d passed, %d failed\n", passed, failed);                                \
        return failed || passed == 0;                                                    \
    }

#endif
