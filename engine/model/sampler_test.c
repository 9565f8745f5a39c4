/* SPDX-License-Identifier: Apache-2.0 */
#include "test_files.h"

#include "sampler.h"

#include <math.h>

enum {
    VOCAB = 50,
    DRAWS = 20000,
};

static float logits[VOCAB];

static int setup(void **state)
{
    struct engine_sampler *sampler;
    for (unsigned i = 0; i < VOCAB; i++)
        logits[i] = (float)(i * 37 % VOCAB) * 0.1f;
    assert_int_equal(engine_sampler_create(VOCAB, &sampler, NULL), KVF_OK);
    *state = sampler;
    return 0;
}

static int teardown(void **state)
{
    engine_sampler_destroy(*state);
    return 0;
}

static uint32_t choose(struct engine_sampler *sampler, const struct engine_sampler_params *params,
                       uint64_t index)
{
    uint32_t token = UINT32_MAX;
    assert_int_equal(engine_sampler_choose(sampler, params, logits, index, &token, NULL), KVF_OK);
    assert_true(token < VOCAB);
    return token;
}

static uint32_t best_id(void)
{
    uint32_t best = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

static void greedy_takes_the_first_of_the_best(void **state)
{
    struct engine_sampler_params greedy = ENGINE_SAMPLER_PARAMS_INIT;
    uint32_t best = best_id();
    assert_int_equal(choose(*state, &greedy, 0), best);
    logits[best - 1] = logits[best];
    assert_int_equal(choose(*state, &greedy, 1), best - 1);
    logits[3] = -INFINITY; /* a masked token is fine */
    assert_int_equal(choose(*state, &greedy, 1), best - 1);
}

/* The share of every token lies near its probability: five standard deviations. */
static void draws_follow_the_softmax(void **state)
{
    struct engine_sampler_params params = {.temperature = 0.7f, .top_p = 1, .seed = 11};
    double total = 0;
    unsigned counts[VOCAB] = {0};
    for (unsigned i = 0; i < VOCAB; i++)
        total += exp((double)logits[i] / 0.7);
    for (uint64_t i = 0; i < DRAWS; i++)
        counts[choose(*state, &params, i)]++;
    for (unsigned i = 0; i < VOCAB; i++) {
        double p = exp((double)logits[i] / 0.7) / total;
        assert_true(fabs(counts[i] - DRAWS * p) < 5 * sqrt(DRAWS * p * (1 - p)) + 1);
    }
}

static void cuts_keep_the_right_tokens(void **state)
{
    struct engine_sampler_params params = {.temperature = 2, .top_p = 1, .top_k = 5, .seed = 3};
    unsigned counts[VOCAB] = {0};
    for (uint64_t i = 0; i < DRAWS; i++)
        counts[choose(*state, &params, i)]++;
    for (unsigned i = 0; i < VOCAB; i++)
        assert_int_equal(counts[i] > 0, logits[i] > 4.45f);

    /* top-p: the smallest set of the most probable tokens that reaches it. */
    double total = 0, sum = 0, least = 0;
    for (unsigned i = 0; i < VOCAB; i++)
        total += exp((double)logits[i] / 2);
    for (int i = VOCAB - 1; i >= 0 && sum < 0.3 * total; i--) {
        least = i * 0.1;
        sum += exp(least / 2);
    }
    params.top_k = 0;
    params.top_p = 0.3f;
    memset(counts, 0, sizeof counts);
    for (uint64_t i = 0; i < DRAWS; i++)
        counts[choose(*state, &params, i)]++;
    for (unsigned i = 0; i < VOCAB; i++)
        assert_int_equal(counts[i] > 0, (double)logits[i] > least - 0.05);

    params.top_p = 1e-6f;
    assert_int_equal(choose(*state, &params, 0), best_id());
    params = (struct engine_sampler_params){.temperature = 9, .top_p = 1, .top_k = 1};
    assert_int_equal(choose(*state, &params, 0), best_id());
    params.top_k = UINT32_MAX;
    (void)choose(*state, &params, 0);
}

static void a_draw_depends_on_seed_and_index_only(void **state)
{
    struct engine_sampler_params params = {.temperature = 1, .top_p = 0.9f, .seed = 1},
                                 other = params;
    uint32_t first[64];
    unsigned same = 0;
    other.seed = 2;
    for (uint64_t i = 0; i < 64; i++)
        first[i] = choose(*state, &params, i);
    for (uint64_t i = 64; i-- > 0;) { /* another order, another request in between */
        same += choose(*state, &other, i) == first[i];
        assert_int_equal(choose(*state, &params, i), first[i]);
    }
    assert_true(same < 20);
}

static void logprobs_are_the_log_softmax(void **state)
{
    struct engine_logprob top[VOCAB + 5];
    uint32_t n_top = 0;
    float logprob;
    double total = 0;
    for (unsigned i = 0; i < VOCAB; i++)
        total += exp((double)logits[i]);
    assert_int_equal(
        engine_sampler_logprobs(*state, logits, 7, &logprob, VOCAB + 5, top, &n_top, NULL), KVF_OK);
    assert_int_equal(n_top, VOCAB);
    assert_true(fabs((double)logprob - ((double)logits[7] - log(total))) < 1e-5);
    for (unsigned i = 0; i < VOCAB; i++) {
        assert_true(i == 0 || top[i].logprob < top[i - 1].logprob);
        assert_true(fabs((double)top[i].logprob - ((double)logits[top[i].token] - log(total))) <
                    1e-5);
    }
    assert_int_equal(engine_sampler_logprobs(*state, logits, 7, &logprob, 0, NULL, NULL, NULL),
                     KVF_OK);
}

static void refuses_bad_input(void **state)
{
    struct engine_sampler_params params = {.temperature = 1, .top_p = 1};
    struct kvf_error error;
    uint32_t token = 77;
    float logprob;
    static const float bad_temperatures[] = {-1, NAN, INFINITY}, bad_top_p[] = {0, -1, 1.5f, NAN};
    for (unsigned i = 0; i < 3; i++) {
        params.temperature = bad_temperatures[i];
        assert_int_equal(engine_sampler_choose(*state, &params, logits, 0, &token, &error),
                         KVF_EINVAL);
        test_contains(error.text, "temperature");
    }
    params.temperature = 1;
    for (unsigned i = 0; i < 4; i++) {
        params.top_p = bad_top_p[i];
        assert_int_equal(engine_sampler_choose(*state, &params, logits, 0, &token, &error),
                         KVF_EINVAL);
        test_contains(error.text, "top_p");
    }
    params.top_p = 1;
    assert_int_equal(
        engine_sampler_logprobs(*state, logits, VOCAB, &logprob, 0, NULL, NULL, &error),
        KVF_EINVAL);
    logits[9] = NAN;
    assert_int_equal(engine_sampler_choose(*state, &params, logits, 0, &token, &error),
                     KVF_EINTERNAL);
    test_contains(error.text, "logit 9");
    for (unsigned i = 0; i < VOCAB; i++)
        logits[i] = -INFINITY;
    assert_int_equal(engine_sampler_choose(*state, &params, logits, 0, &token, &error),
                     KVF_EINTERNAL);
    assert_int_equal(token, 77);
    struct engine_sampler *none = NULL;
    assert_int_equal(engine_sampler_create(0, &none, &error), KVF_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(greedy_takes_the_first_of_the_best, setup, teardown),
        cmocka_unit_test_setup_teardown(draws_follow_the_softmax, setup, teardown),
        cmocka_unit_test_setup_teardown(cuts_keep_the_right_tokens, setup, teardown),
        cmocka_unit_test_setup_teardown(a_draw_depends_on_seed_and_index_only, setup, teardown),
        cmocka_unit_test_setup_teardown(logprobs_are_the_log_softmax, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_bad_input, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
