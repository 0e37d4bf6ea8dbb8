/* Who used what: phases, threads, categories told late, the peak, against a simple model. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "usage_world.h"

static ta_usage_counts look(const fixture *f)
{
    ta_usage_counts counts;
    ta_usage_look(f->u, 0, &counts);
    return counts;
}

/* The phase of a path such as "step/forward"; all zero where there is none. */
static ta_usage_phase phase(const fixture *f, const char *path)
{
    static ta_usage_phase all[TA_USAGE_PHASES];
    size_t count = ta_usage_phases(f->u, 0, all, TA_USAGE_PHASES);
    for (size_t i = 0; i < count; i++) {
        char full[256] = "", longer[512];
        for (size_t at = i; at; at = all[at].around) {
            snprintf(longer, sizeof longer, "%s%s%s", all[at].name, *full ? "/" : "",
                     full);
            snprintf(full, sizeof full, "%.255s", longer);
        }
        if (strcmp(full, path) == 0) return all[i];
    }
    return (ta_usage_phase){0};
}

/* Bytes of a category now, or at a moment. */
static uint64_t bytes_of(const fixture *f, ta_category category, ta_usage_moment when)
{
    static ta_usage_block blocks[4096];
    size_t count = ta_usage_blocks(f->u, 0, when, blocks, 4096);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count && i < 4096; i++)
        if (blocks[i].category == category) bytes += blocks[i].size;
    return bytes;
}

static void categorize(const fixture *f, void *ptr, ta_category category)
{
    uint64_t addr = (uintptr_t)ptr;
    ta_usage_set_category(f->u, 0, &addr, 1, category);
}

TEST(phases_nest)
{
    fixture f = set_up();
    ta_usage_span step, forward;
    void *before = one(&f, MIB);
    ta_usage_enter(f.u, "step", &step);
    void *p = one(&f, 2 * MIB);
    ta_usage_enter(f.u, "forward", &forward);
    void *q = one(&f, 4 * MIB);
    ta_free(f.a, one(&f, 8 * MIB));
    ta_usage_leave(f.u, &forward);
    void *r = one(&f, 700);
    ta_usage_leave(f.u, &step);
    void *after = one(&f, MIB);
    ta_usage_phase outer = phase(&f, "step"), inner = phase(&f, "step/forward"),
                   none = phase(&f, "");
    CHECK_EQ(outer.entries, 1);
    CHECK_EQ(outer.bytes, 2 * MIB + 700);
    CHECK_EQ(outer.live, 2 * MIB + 700);
    CHECK_EQ(inner.allocs, 2);
    CHECK_EQ(inner.bytes, 12 * MIB);
    CHECK_EQ(inner.kept, 4 * MIB);
    CHECK_EQ(inner.peak, 15 * MIB);
    CHECK_EQ(none.live, 2 * MIB);
    CHECK(outer.us >= inner.us && inner.us > 0);
    CHECK_EQ(look(&f).when[TA_USAGE_PEAK].bytes, 15 * MIB);
    void *all[] = {before, p, q, r, after};
    for (size_t i = 0; i < 5; i++) ta_free(f.a, all[i]);
    CHECK_EQ(look(&f).live, 0);
    CHECK_EQ(phase(&f, "step/forward").kept, 4 * MIB);
    tear_down(&f);
}

/* In a phase of the program's own: an activation where the model's forward is around it, or
 * was just before. */
TEST(activations_by_phase)
{
    static const struct {
        const char *before, *around, *name;
        bool activations;
    } cases[] = {
        {NULL, "", "mine", false},        {NULL, "mine", "forward", true},
        {NULL, "forward", "loss", true},  {NULL, "optimizer", "closure", false},
        {"forward", "", "logits", true},  {"forward", "", "load", false},
        {"forward", "", "In[3]", false},  {"evaluation", "", "metrics", false},
        {NULL, "In[4]", "forward", true}, {NULL, "backward", "optimizer", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f = set_up();
        ta_usage_span outer = {0}, inner;
        ta_usage_between(f.u, cases[i].before);
        if (*cases[i].around) ta_usage_enter(f.u, cases[i].around, &outer);
        ta_usage_enter(f.u, cases[i].name, &inner);
        char path[64];
        snprintf(path, sizeof path, "%s%s%s", cases[i].around,
                 *cases[i].around ? "/" : "", cases[i].name);
        CHECK(phase(&f, path).activations == cases[i].activations);
        ta_usage_leave(f.u, &inner);
        if (*cases[i].around) ta_usage_leave(f.u, &outer);
        tear_down(&f);
    }
}

/* A window of five steps frees what it keeps; what is freed in its own step or the next is
 * not late. */
TEST(freed_late)
{
    fixture f = set_up();
    void *window[5] = {0}, *next = NULL;
    ta_usage_span span;
    ta_usage_enter(f.u, "mine", &span);
    for (int step = 0; step < 40; step++) {
        ta_free(f.a, window[step % 5]);
        window[step % 5] = one(&f, KIB);
        ta_free(f.a, next);
        next = one(&f, MIB);
        ta_free(f.a, one(&f, MIB));
        ta_usage_step(f.u);
        const double late = phase(&f, "mine").late;
        if (step < 5) CHECK(late == 0);
        if (step > 24) CHECK(late == KIB);
    }
    ta_usage_leave(f.u, &span);
    for (int i = 0; i < 5; i++) ta_free(f.a, window[i]);
    ta_free(f.a, next);
    tear_down(&f);
}

TEST(between_phases)
{
    fixture f = set_up();
    ta_usage_span forward, again, backward;
    ta_usage_enter(f.u, "forward", &forward);
    ta_usage_enter(f.u, "forward", &again); /* inside itself: the same */
    ta_free(f.a, one(&f, MIB));
    ta_usage_leave(f.u, &again);
    ta_usage_between(f.u, "forward");
    ta_usage_leave(f.u, &forward);
    ta_free(f.a, one(&f, 2 * MIB)); /* the loss, say */
    ta_usage_enter(f.u, "backward", &backward);
    ta_free(f.a, one(&f, 4 * MIB));
    ta_usage_between(f.u, NULL);
    ta_usage_leave(f.u, &backward);
    ta_free(f.a, one(&f, 8 * MIB));
    CHECK_EQ(phase(&f, "forward").bytes, 3 * MIB);
    CHECK_EQ(phase(&f, "forward").entries, 1);
    CHECK_EQ(phase(&f, "backward").bytes, 4 * MIB);
    CHECK_EQ(phase(&f, "").bytes, 8 * MIB);
    tear_down(&f);
}

TEST(categories_told_later_count_at_the_peak)
{
    fixture f = set_up();
    void *weight = one(&f, MIB), *gradient = one(&f, 2 * MIB),
         *activation = one(&f, 4 * MIB);
    categorize(&f, activation, TA_CATEGORY_ACTIVATION);
    ta_free(f.a, activation); /* the peak was before */
    void *other = one(&f, 512);
    categorize(&f, weight, TA_CATEGORY_PARAMETER);
    categorize(&f, gradient, TA_CATEGORY_GRADIENT);
    CHECK_EQ(look(&f).when[TA_USAGE_PEAK].bytes, 7 * MIB);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_PARAMETER, TA_USAGE_PEAK), MIB);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_PEAK), 2 * MIB);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_ACTIVATION, TA_USAGE_PEAK), 4 * MIB);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_UNKNOWN, TA_USAGE_PEAK), 0);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_UNKNOWN, TA_USAGE_NOW), 512);
    ta_free(f.a, gradient);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_PEAK), 2 * MIB);
    ta_usage_reset_peaks(f.u, 0);
    CHECK_EQ(look(&f).when[TA_USAGE_PEAK].bytes, MIB + 512);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_PEAK), 0);
    ta_free(f.a, weight);
    ta_free(f.a, other);
    tear_down(&f);
}

/* A backward: `kept` is what it leaves, `bytes` its peak. Whether all is to be told. */
static bool backward(const fixture *f, size_t bytes, size_t left, void **kept)
{
    ta_usage_span span;
    ta_usage_enter(f->u, "backward", &span);
    ta_free(f->a, one(f, bytes));
    *kept = one(f, left);
    ta_usage_leave(f->u, &span);
    return ta_usage_backward_ends(f->u, &span);
}

TEST(what_backward_left_is_taken_for_gradients)
{
    fixture f = set_up();
    void *weight = one(&f, MIB), *gradient, *stranger, *third, *told;
    CHECK(ta_usage_due(f.u));
    CHECK(
        backward(&f, 8 * MIB, 2 * MIB, &told)); /* the peak is new: nothing is guessed */
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_NOW), 0);
    categorize(&f, told, TA_CATEGORY_BUFFER);
    ta_usage_told(f.u);
    CHECK(!ta_usage_due(f.u));
    CHECK(!backward(&f, MIB, 512, &gradient));
    CHECK(!backward(&f, MIB, 1024, &stranger));
    CHECK(!backward(&f, MIB, 2048, &third));
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_NOW), 512 + 1024 + 2048);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_BUFFER, TA_USAGE_NOW), 2 * MIB);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_UNKNOWN, TA_USAGE_NOW), MIB);
    /* A new peak; in its backward one dies that was a guess, and after it another. */
    ta_usage_span span;
    ta_usage_enter(f.u, "backward", &span);
    ta_free(f.a, one(&f, 64 * MIB));
    ta_free(f.a, stranger);
    ta_usage_leave(f.u, &span);
    CHECK(ta_usage_backward_ends(f.u, &span));
    ta_free(f.a, third);
    ta_usage_told(f.u);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_PEAK), 2048);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_NOW),
             0); /* nobody told of any */
    static ta_usage_sample samples[TA_USAGE_SAMPLES];
    double interval_us;
    size_t count = ta_usage_timeline(f.u, 0, samples, TA_USAGE_SAMPLES, &interval_us);
    /* It keeps what died as a guess, and nothing that lived. */
    CHECK(!(samples[count - 1].of[TA_CATEGORY_GRADIENT] & 512));
    CHECK(!ta_usage_backward_ends(f.u, &span)); /* what was denied is not guessed again */
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_NOW), 0);
    categorize(&f, gradient, TA_CATEGORY_GRADIENT);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_GRADIENT, TA_USAGE_PEAK), 2048 + 512);
    ta_free(f.a, weight);
    ta_free(f.a, gradient);
    ta_free(f.a, told);
    tear_down(&f);
}

TEST(a_refusal_is_a_moment)
{
    fixture f = set_up();
    CHECK_EQ(look(&f).when[TA_USAGE_OOM].bytes, 0);
    ta_set_limit(f.a, 0, TA_LIMIT_API, 16 * MIB);
    void *weight = one(&f, 4 * MIB), *activation = one(&f, 8 * MIB);
    categorize(&f, activation, TA_CATEGORY_ACTIVATION);
    ta_usage_span span;
    ta_usage_enter(f.u, "forward", &span);
    CHECK(!one(&f, 12 * MIB));
    ta_usage_leave(f.u, &span);
    ta_free(f.a, activation); /* as the error unwinds */
    void *after = one(&f, 2 * MIB);
    categorize(&f, weight, TA_CATEGORY_PARAMETER);
    ta_usage_when when = look(&f).when[TA_USAGE_OOM];
    CHECK_EQ(when.bytes, 12 * MIB);
    CHECK_EQ(when.requested, 12 * MIB);
    CHECK(when.phase > 0);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_PARAMETER, TA_USAGE_OOM), 4 * MIB);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_ACTIVATION, TA_USAGE_OOM), 8 * MIB);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_UNKNOWN, TA_USAGE_OOM), 0);
    ta_free(f.a, weight);
    ta_free(f.a, after);
    tear_down(&f);
}

TEST(the_text_of_a_refusal)
{
    fixture f = set_up();
    char text[512];
    ta_set_limit(f.a, 0, TA_LIMIT_API, 64 * MIB);
    CHECK_EQ(ta_usage_oom_text(f.u, 0, text, sizeof text), 0); /* there was none */
    void *weight = one(&f, 4 * MIB), *state = one(&f, 8 * MIB);
    ta_usage_span outer, span;
    ta_usage_enter(f.u, "epoch", &outer);
    ta_usage_enter(f.u, "forward", &span);
    void *kept = one(&f, 32 * MIB);
    CHECK(!one(&f, 40 * MIB));
    ta_usage_leave(f.u, &span);
    ta_usage_leave(f.u, &outer);
    CHECK_EQ(ta_usage_oom_text(f.u, 0, text, sizeof text), 0); /* nobody told of any */
    CHECK_STR(text, "");
    categorize(&f, weight, TA_CATEGORY_PARAMETER);
    categorize(&f, state, TA_CATEGORY_OPTIMIZER_STATE);
    ta_usage_unused(f.u, 24 * MIB);
    const char *whole =
        " By what they hold: activations 32.00 MiB, optimizer state 8.00 MiB, parameters "
        "4.00 MiB; in epoch/forward. What would save most, at most: checkpointing the "
        "repeated blocks 32.00 MiB; torch.no_grad() in evaluation, whose graphs never "
        "run "
        "backward 24.00 MiB; half the batch, two steps accumulated 16.00 MiB.";
    CHECK_EQ(ta_usage_oom_text(f.u, 0, text, sizeof text), (int)strlen(whole));
    CHECK_STR(text, whole);
    char small[20];
    CHECK_EQ(ta_usage_oom_text(f.u, 0, small, sizeof small), (int)strlen(whole));
    CHECK_STR(small, " By what they hold:");
    ta_free(f.a, weight);
    ta_free(f.a, state);
    ta_free(f.a, kept);
    tear_down(&f);
}

TEST(a_refusal_names_the_host_for_state)
{
    fixture f = set_up();
    char text[512];
    ta_set_limit(f.a, 0, TA_LIMIT_API, 64 * MIB);
    void *weight = one(&f, 4 * MIB), *state = one(&f, 40 * MIB);
    CHECK(!one(&f, 40 * MIB));
    categorize(&f, weight, TA_CATEGORY_PARAMETER);
    categorize(&f, state, TA_CATEGORY_OPTIMIZER_STATE);
    ta_usage_oom_text(f.u, 0, text, sizeof text);
    CHECK(strstr(text,
                 "most: torcharena.offload_optimizer, with enable(spill=) 40.00 MiB; "
                 "training adapters only 40.00 MiB; an optimizer with"));
    ta_free(f.a, weight);
    ta_free(f.a, state);
    tear_down(&f);
}

TEST(what_lived_before_is_counted)
{
    fixture f = set_up();
    void *p = one(&f, 3 * MIB);
    ta_usage *second;
    CHECK_EQ(ta_usage_create(&second), TA_OK);
    CHECK_EQ(ta_usage_watch(second, f.a), TA_OK);
    ta_usage_counts counts;
    ta_usage_look(second, 0, &counts);
    CHECK_EQ(counts.live, 3 * MIB);
    CHECK_EQ(counts.when[TA_USAGE_PEAK].bytes, 3 * MIB);
    ta_free(f.a, p);
    ta_usage_look(second, 0, &counts);
    CHECK_EQ(counts.live, 0);
    CHECK_EQ(ta_usage_destroy(second), TA_OK);
    tear_down(&f);
}

TEST(counting_ends_and_begins_again)
{
    fixture f = set_up();
    void *kept[700];
    for (int i = 0; i < 700; i++) kept[i] = one(&f, 512 * (1 + (size_t)i % 9));
    uint64_t live = look(&f).live;
    categorize(&f, kept[0], TA_CATEGORY_PARAMETER);
    CHECK_EQ(ta_usage_unwatch(f.u), TA_OK);
    CHECK_EQ(ta_usage_unwatch(f.u), TA_OK);
    ta_free(f.a, kept[699]);
    kept[699] = one(&f, 3 * MIB);
    CHECK_EQ(look(&f).live, 0);
    CHECK_EQ(look(&f).blocks, 0);
    CHECK_EQ(look(&f).when[TA_USAGE_PEAK].bytes, live);
    CHECK_EQ(bytes_of(&f, TA_CATEGORY_PARAMETER, TA_USAGE_PEAK), 512);
    CHECK_EQ(ta_usage_watch(f.u, f.a), TA_OK);
    CHECK_EQ(look(&f).blocks, 700);
    CHECK_EQ(look(&f).live, live - 512 * (1 + 699 % 9) + 3 * MIB);
    for (int i = 0; i < 700; i++) ta_free(f.a, kept[i]);
    CHECK_EQ(look(&f).live, 0);
    tear_down(&f);
}

TEST(steps_are_remembered)
{
    fixture f = set_up();
    ta_usage_block blocks[8];
    void *kept[3];
    for (int i = 0; i < 3; i++, ta_usage_step(f.u)) kept[i] = one(&f, MIB);
    CHECK_EQ(ta_usage_blocks(f.u, 0, TA_USAGE_NOW, blocks, 8), 3);
    uint64_t steps = 0;
    for (int i = 0; i < 3; i++) steps |= (uint64_t)1 << blocks[i].step;
    CHECK_EQ(steps, 7);
    CHECK_EQ(look(&f).step, 3);
    CHECK_EQ(look(&f).when[TA_USAGE_PEAK].step, 2);
    for (int i = 0; i < 3; i++) ta_free(f.a, kept[i]);
    tear_down(&f);
}

/* --- threads --------------------------------------------------------------------------- */
typedef struct helper {
    const fixture *f;
    const char *phase; /* of its own; NULL: none */
    size_t bytes;
    void *p;
} helper;

static void *help(void *context)
{
    helper *h = context;
    ta_usage_span span;
    if (h->phase) ta_usage_enter(h->f->u, h->phase, &span);
    h->p = one(h->f, h->bytes);
    if (h->phase) ta_usage_leave(h->f->u, &span);
    return NULL;
}

TEST(threads_count_to_their_own_phase_or_the_leaders)
{
    fixture f = set_up();
    ta_usage_span span;
    helper helpers[2] = {{&f, NULL, MIB, NULL}, {&f, "prefetch", 2 * MIB, NULL}};
    pthread_t threads[2];
    ta_usage_enter(f.u, "backward", &span);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, help, &helpers[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    ta_usage_leave(f.u, &span);
    CHECK_EQ(phase(&f, "backward").bytes, MIB);
    CHECK_EQ(phase(&f, "prefetch").bytes, 2 * MIB);
    /* With nobody in a phase the next to enter one leads. */
    helper alone = {&f, "alone", 4 * MIB, NULL};
    pthread_create(&threads[0], NULL, help, &alone);
    pthread_join(threads[0], NULL);
    CHECK_EQ(phase(&f, "alone").bytes, 4 * MIB);
    ta_free(f.a, helpers[0].p);
    ta_free(f.a, helpers[1].p);
    ta_free(f.a, alone.p);
    tear_down(&f);
}

typedef struct worker {
    const fixture *f;
    unsigned seed;
} worker;

static void *work(void *context)
{
    worker *w = context;
    void *blocks[32] = {0};
    for (int i = 0; i < 3000; i++) {
        int at = rand_r(&w->seed) % 32;
        ta_usage_span span;
        bool inside = rand_r(&w->seed) % 4 == 0;
        if (inside) ta_usage_enter(w->f->u, at % 2 ? "even" : "odd", &span);
        if (blocks[at])
            ta_free(w->f->a, blocks[at]), blocks[at] = NULL;
        else
            blocks[at] = one(w->f, 512 + (size_t)rand_r(&w->seed) % MIB);
        if (inside) ta_usage_leave(w->f->u, &span);
        if (i % 64 == 0) {
            uint64_t addr = (uintptr_t)blocks[at];
            if (addr) ta_usage_set_category(w->f->u, 0, &addr, 1, TA_CATEGORY_BUFFER);
            look(w->f);
        }
    }
    for (int i = 0; i < 32; i++) ta_free(w->f->a, blocks[i]);
    return NULL;
}

TEST(threads_at_once)
{
    fixture f = set_up();
    pthread_t threads[4];
    worker workers[4];
    char text[256] = "";
    for (unsigned i = 0; i < 4; i++) {
        workers[i] = (worker){&f, i + 1};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    for (int i = 0; i < 50; i++) CHECK(ta_usage_check(f.u, text, sizeof text));
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    CHECK_EQ(look(&f).live, 0);
    CHECK(look(&f).when[TA_USAGE_PEAK].bytes > 0);
    tear_down(&f);
}

/* --- against a model ------------------------------------------------------------------- */
typedef struct model_block {
    void *p;
    uint64_t size;
    int category;
    bool live, at_peak;
} model_block;

TEST(random_sequences_are_the_models)
{
    fixture f = set_up();
    static model_block blocks[3001];
    size_t count = 0;
    uint64_t live = 0, peak = 0;
    unsigned seed = 7;
    for (int i = 0; i < 12000; i++) {
        unsigned way = (unsigned)rand_r(&seed) % 8;
        size_t at = count ? (size_t)rand_r(&seed) % count : 0;
        if ((way < 4 && count < 3000) || !count) {
            size_t size = 512 * (1 + (size_t)rand_r(&seed) % 512);
            blocks[count++] = (model_block){one(&f, size), size, 0, true, false};
            if ((live += size) > peak) {
                peak = live;
                for (size_t k = 0; k < count; k++) blocks[k].at_peak = blocks[k].live;
            }
        } else if (way < 7 && blocks[at].live) {
            ta_free(f.a, blocks[at].p);
            blocks[at].live = false;
            live -= blocks[at].size;
        } else if (blocks[at].live) {
            blocks[at].category = (int)((unsigned)rand_r(&seed) % TA_CATEGORIES);
            categorize(&f, blocks[at].p, (ta_category)blocks[at].category);
        }
    }
    uint64_t now[TA_CATEGORIES] = {0}, then[TA_CATEGORIES] = {0};
    for (size_t k = 0; k < count; k++) {
        if (blocks[k].live) now[blocks[k].category] += blocks[k].size;
        if (blocks[k].at_peak) then[blocks[k].category] += blocks[k].size;
    }
    CHECK_EQ(look(&f).live, live);
    CHECK_EQ(look(&f).when[TA_USAGE_PEAK].bytes, peak);
    CHECK(peak > live);
    for (int c = 0; c < TA_CATEGORIES; c++) {
        CHECK_EQ(bytes_of(&f, (ta_category)c, TA_USAGE_NOW), now[c]);
        CHECK_EQ(bytes_of(&f, (ta_category)c, TA_USAGE_PEAK), then[c]);
    }
    tear_down(&f);
}

/* --- spans that do not nest, threads that end ---------------------------------------------- */
static void in_turns(fixture *f, bool around)
{
    ta_usage_span outer, a, b;
    if (around) ta_usage_enter(f->u, "outer", &outer);
    ta_usage_enter(f->u, "a", &a);
    ta_usage_enter(f->u, "b", &b);
    ta_usage_leave(f->u, &a); /* as two generators that take turns */
    ta_usage_leave(f->u, &b);
    one(f, MIB);
    if (around) ta_usage_leave(f->u, &outer);
    one(f, 2 * MIB);
}

static void *turns(void *of)
{
    in_turns(of, true);
    in_turns(of, false);
    return NULL;
}

TEST(spans_that_do_not_nest_end_where_they_began)
{
    fixture f = set_up();
    in_turns(&f, true);
    CHECK_EQ(phase(&f, "outer").live, MIB);
    CHECK_EQ(phase(&f, "outer/a").live + phase(&f, "outer/a/b").live, 0u);
    in_turns(&f, false);
    ta_usage_span led;
    ta_usage_enter(f.u, "main", &led);
    pthread_t thread; /* and one that does not lead */
    pthread_create(&thread, NULL, turns, &f);
    pthread_join(thread, NULL);
    ta_usage_leave(f.u, &led);
    CHECK_EQ(phase(&f, "outer").live, 2 * MIB);
    CHECK_EQ(phase(&f, "outer/a").live + phase(&f, "outer/a/b").live, 0u);
    CHECK_EQ(phase(&f, "a").live + phase(&f, "a/b").live, 0u);
    CHECK_EQ(phase(&f, "main").live, 5 * MIB); /* in no phase of its own: the leader's */
    tear_down(&f);
}

static void *leave_it(void *of)
{
    const fixture *f = ((void **)of)[0];
    ta_usage_span mine;
    ta_usage_enter(f->u, "helper", &mine);
    ta_usage_leave(f->u, ((void **)of)[1]);
    one(f, 4 * MIB);
    ta_usage_leave(f->u, &mine);
    return NULL;
}

static void *enter_it(void *of)
{
    const fixture *f = ((void **)of)[0];
    ta_usage_span outer;
    ta_usage_enter(f->u, "outer", &outer);
    ta_usage_enter(f->u, "far", ((void **)of)[1]);
    pthread_t other;
    pthread_create(&other, NULL, leave_it, of);
    pthread_join(other, NULL);
    one(f, 8 * MIB);
    ta_usage_leave(f->u, &outer);
    return NULL;
}

TEST(a_span_that_another_thread_leaves_is_over_for_its_own)
{
    fixture f = set_up();
    ta_usage_span span, led;
    void *of[2] = {&f, &span};
    enter_it(of); /* leads, and is led again by nobody */
    CHECK_EQ(phase(&f, "outer/far").entries, 1u);
    CHECK_EQ(phase(&f, "outer/far").live, 0u);
    CHECK_EQ(phase(&f, "outer").live, 8 * MIB);
    CHECK_EQ(phase(&f, "helper").live, 4 * MIB);
    one(&f, MIB);
    CHECK_EQ(phase(&f, "").live, MIB);
    ta_usage_enter(f.u, "main", &led); /* so that the other does not lead */
    pthread_t thread;
    pthread_create(&thread, NULL, enter_it, of);
    pthread_join(thread, NULL);
    ta_usage_leave(f.u, &span); /* its thread is gone: nothing */
    one(&f, 2 * MIB);
    ta_usage_leave(f.u, &led);
    CHECK_EQ(phase(&f, "outer/far").entries, 2u);
    CHECK_EQ(phase(&f, "outer").live, 16 * MIB);
    CHECK_EQ(phase(&f, "main").live, 2 * MIB);
    tear_down(&f);
}

TEST(enter_anew_and_leave_to_are_both_calls_in_one)
{
    fixture f = set_up();
    ta_usage_span forward, backward;
    ta_usage_enter_anew(f.u, "forward", &forward);
    one(&f, MIB);
    ta_usage_leave_to(f.u, &forward, "forward");
    one(&f, 2 * MIB); /* the loss */
    CHECK_EQ(phase(&f, "forward").live, 3 * MIB);
    ta_usage_enter_anew(f.u, "backward", &backward);
    one(&f, 4 * MIB);
    ta_usage_leave_to(f.u, &backward, NULL);
    one(&f, 8 * MIB);
    CHECK_EQ(phase(&f, "forward").live, 3 * MIB);
    CHECK_EQ(phase(&f, "backward").live, 4 * MIB);
    CHECK_EQ(phase(&f, "").live, 8 * MIB);
    CHECK_EQ(phase(&f, "forward").entries, 1u);
    CHECK_EQ(phase(&f, "backward").kept, 4 * MIB);
    tear_down(&f);
}

static void *end_inside(void *of)
{
    ta_usage_span span;
    ta_usage_enter(((fixture *)of)->u, "unended", &span);
    one(of, MIB);
    return NULL;
}

TEST(a_thread_that_ends_inside_a_phase_leads_no_longer)
{
    fixture f = set_up();
    pthread_t thread;
    pthread_create(&thread, NULL, end_inside, &f);
    pthread_join(thread, NULL);
    one(&f, 2 * MIB);
    CHECK_EQ(phase(&f, "unended").live, MIB);
    ta_usage_span span;
    ta_usage_enter(f.u, "main", &span); /* leads from now on */
    one(&f, 4 * MIB);
    ta_usage_leave(f.u, &span);
    one(&f, 8 * MIB);
    CHECK_EQ(phase(&f, "unended").live, MIB);
    CHECK_EQ(phase(&f, "main").live, 4 * MIB);
    tear_down(&f);
}

TEST(names_past_the_last_place_count_to_the_phase_around)
{
    fixture f = set_up();
    ta_usage_span outer, inner;
    ta_usage_enter(f.u, "outer", &outer);
    for (unsigned i = 0; i < TA_USAGE_PHASES + 10; i++) {
        char name[32];
        snprintf(name, sizeof name, "step %u", i);
        ta_usage_enter(f.u, name, &inner);
        ta_free(f.a, one(&f, 512));
        ta_usage_leave(f.u, &inner);
    }
    ta_usage_leave(f.u, &outer);
    ta_usage_phase all[2];
    CHECK_EQ(ta_usage_phases(f.u, 0, all, 2), TA_USAGE_PHASES);
    CHECK_EQ(phase(&f, "outer").allocs, 12); /* of TA_USAGE_PHASES + 10, less 1022 */
    CHECK_EQ(phase(&f, "outer").entries, 1);
    CHECK_EQ(phase(&f, "outer/step 5").allocs, 1);
    tear_down(&f);
}

TEST(the_timeline_is_of_the_same_events)
{
    fixture f = set_up();
    static ta_usage_sample samples[TA_USAGE_SAMPLES];
    ta_usage_span forward, optimizer;
    double interval_us = 0;
    ta_usage_enter(f.u, "forward", &forward);
    void *p = one(&f, 4 * MIB), *q = one(&f, 2 * MIB);
    ta_usage_leave(f.u, &forward);
    ta_usage_enter(f.u, "optimizer", &optimizer);
    void *r = one(&f, MIB);
    categorize(&f, p, TA_CATEGORY_PARAMETER); /* told late: it was one all along */
    ta_usage_leave(f.u, &optimizer);
    size_t count = ta_usage_timeline(f.u, 0, samples, TA_USAGE_SAMPLES, &interval_us);
    CHECK(count >= 1 && count <= TA_USAGE_SAMPLES);
    CHECK(interval_us > 0);
    const ta_usage_sample *last = &samples[count - 1];
    CHECK_EQ(last->live, 7 * MIB);
    CHECK_EQ(last->of[TA_CATEGORY_PARAMETER], 4 * MIB);
    CHECK_EQ(last->of[TA_CATEGORY_ACTIVATION], 2 * MIB);
    CHECK_EQ(last->of[TA_CATEGORY_OTHER], MIB);
    ta_stats stats;
    CHECK_EQ(ta_get_stats(f.a, 0, &stats), TA_OK);
    CHECK_EQ(last->reserved, stats.reserved.current);
    CHECK(phase(&f, "forward").activations && !phase(&f, "optimizer").activations);
    for (size_t i = 0; i < count; i++)
        CHECK(samples[i].live < 6 * MIB || samples[i].of[TA_CATEGORY_PARAMETER]);
    void *all[] = {p, q, r};
    for (size_t i = 0; i < 3; i++) ta_free(f.a, all[i]);
    tear_down(&f);
}

/* S19: a million events, and phases without end; a tenth where each of them is slow. */
#if defined(TA_CHECKING) || defined(__SANITIZE_THREAD__)
#define ROUNDS 50000
#else
#define ROUNDS 500000
#endif
TEST(many_events_take_bounded_memory)
{
    fixture f = set_up();
    void *kept[64] = {0};
    uint64_t early = 0;
    for (int i = 0; i < ROUNDS; i++) {
        ta_usage_span span;
        char name[32];
        void **at = &kept[i % 64];
        if (*at) ta_free(f.a, *at);
        if (i % 100 == 0) {
            snprintf(name, sizeof name, "step %d", i);
            ta_usage_enter(f.u, name, &span);
        }
        *at = one(&f, 512 * (1 + (size_t)i % 777));
        if (i % 100 == 0) ta_usage_leave(f.u, &span);
        if (i == 2000) early = look(&f).bytes;
    }
    printf("  recorder: %llu bytes after 4,000 events, %llu after %d\n",
           (unsigned long long)early, (unsigned long long)look(&f).bytes, 2 * ROUNDS);
    CHECK_EQ(look(&f).bytes, early);
    CHECK(early < 1 << 20);
    for (int i = 0; i < 64; i++) ta_free(f.a, kept[i]);
    tear_down(&f);
}

TEST(a_forked_child_does_nothing)
{
    fixture f = set_up();
    void *p = one(&f, MIB);
    pid_t pid = fork();
    if (pid == 0) {
        ta_usage_counts counts;
        ta_usage_span span;
        ta_usage_look(f.u, 0, &counts);
        ta_usage_enter(f.u, "x", &span);
        ta_usage_leave(f.u, &span);
        _exit(counts.live == 0 && ta_usage_destroy(f.u) == TA_FORKED ? 0 : 1);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_EQ(look(&f).live, MIB);
    ta_free(f.a, p);
    tear_down(&f);
}

TEST_MAIN()
