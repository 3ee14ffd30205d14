import numpy as np
import pytest
import torch
from scipy import stats

from pilotfish.sampling import Prefix, Sampler, SamplingParams
from pilotfish.sampling.choose import choose, choose_from_logits, gumbel_argmax
from pilotfish.sampling.noise import gumbel
from pilotfish.sampling.truncation import Temperature

FALSE_ALARM = 1e-6


def random_logits(rows, vocab, seed=0, scale=2.0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def sampler(vocab, seed=1, **options):
    return Sampler(SamplingParams(seed=seed, **options), vocab)


def prefixes(rows):
    return [Prefix((5,) * 10, 4, (6,) * row) for row in range(rows)]


def test_prefix_position_is_that_of_the_next_token():
    assert Prefix((5, 6, 7), 2).position == 3
    assert Prefix((5, 6, 7), 2, (8, 9)).position == 5


def test_choices_are_the_argmax_of_score_and_noise_at_the_rows_position():
    logits = random_logits(4, 300)
    found = sampler(300, seed=2**63, temperature=0.8, top_k=50)
    scores = found.pipeline.scores(logits, prefixes(4)).double().numpy()
    expected = [int(np.argmax(scores[row] + gumbel(2**63, 10 + row, 300))) for row in range(4)]
    assert found.choices(logits, prefixes(4)) == expected


@pytest.mark.parametrize("chosen", [{}, {"temperature": 0}, {"top_k": 40}, {"temperature": 0.7, "top_p": 0.9}])
def test_choices_do_not_depend_on_the_other_rows(chosen):
    logits = random_logits(9, 49_152)
    found = sampler(49_152, **chosen)
    together = found.choices(logits, prefixes(9))
    order = [8, 3, 0, 5]
    assert found.choices(logits[order], [prefixes(9)[row] for row in order]) == [together[row] for row in order]
    assert [found.choices(logits[row : row + 1], [prefixes(9)[row]])[0] for row in order] == [
        together[row] for row in order
    ]


def test_choices_with_noise_for_the_support_only_equal_those_with_full_noise():
    # -1e30 is a score like any other and can never win: it forces the full noise on the same competitors.
    for kept in (1, 3, 40, 200):
        scores = torch.full((20, 1000), -torch.inf)
        columns = torch.randperm(1000, generator=torch.Generator().manual_seed(kept))[:kept]
        scores[:, columns] = random_logits(20, kept, kept)
        full = scores.clamp(min=-1e30)
        assert gumbel_argmax(scores, 9, range(20)) == gumbel_argmax(full, 9, range(20))


def test_choices_refuse_a_row_without_a_score():
    with pytest.raises(AssertionError, match="no token has a score"):
        gumbel_argmax(torch.full((1, 8), torch.nan), 1, [0])


@pytest.mark.parametrize("chosen", [{}, {"temperature": 0}, {"top_k": 3}, {"top_p": 0.5}])
def test_padded_columns_are_never_chosen_and_carry_no_mass(chosen):
    logits = random_logits(5, 64)
    logits[:, 50:] = 1e4
    found = sampler(50, **chosen)
    assert max(found.choices(logits, prefixes(5))) < 50
    assert found.choices(logits, prefixes(5)) == found.choices(logits[:, :50].contiguous(), prefixes(5))
    assert torch.equal(found.laws(logits, prefixes(5)), found.laws(logits[:, :50].contiguous(), prefixes(5)))
    assert found.laws(logits, prefixes(5)).shape == (5, 50)
    assert all(own.token.logprob > -50 for own in found.raw_logprobs(logits, [0] * 5, 0))


def test_raw_logprobs_are_of_the_unprocessed_law_and_row_invariant():
    logits = random_logits(7, 5000 + 8)
    tokens = [3, 1, 4, 1, 5, 9, 2]
    found = sampler(5000, temperature=0, top_k=1).raw_logprobs(logits, tokens, 3)
    law = logits[:, :5000].double().log_softmax(-1)
    for row, (own, token) in enumerate(zip(found, tokens, strict=True)):
        assert own.token.token == token
        assert own.token.logprob == pytest.approx(float(law[row, token]), abs=1e-5)
        assert own.token.rank == 1 + int((law[row] > law[row, token]).sum())
        best = law[row].topk(3)
        assert [one.token for one in own.top] == best.indices.tolist()
        assert [one.logprob for one in own.top] == pytest.approx(best.values.tolist(), abs=1e-5)
        assert [one.rank for one in own.top] == [1, 2, 3]
        assert sampler(5000).raw_logprobs(logits[row : row + 1], tokens[row : row + 1], 3) == [own]


def test_processed_logprobs_are_of_the_final_law():
    logits = random_logits(4, 300)
    found = sampler(300, temperature=0.7, top_k=5)
    tokens = found.choices(logits, prefixes(4))
    laws = found.laws(logits, prefixes(4)).double().log()
    for row, own in enumerate(found.processed_logprobs(logits, prefixes(4), tokens, 9)):
        assert own.token.logprob == pytest.approx(float(laws[row, tokens[row]]), abs=1e-5)
        assert len(own.top) == 5, "tokens of probability 0 are not listed"


def test_sampler_gives_the_uniforms_of_its_own_streams():
    found = sampler(10, seed=3)
    accept = found.accept_uniforms([20, 21, 21], 20)
    assert accept.dtype == torch.float64
    assert len({*accept.tolist(), found.resample_uniform(20, 20), found.resample_uniform(21, 20)}) == 5
    assert torch.equal(accept, found.accept_uniforms([20, 21, 21], 20))
    assert not torch.equal(accept, found.accept_uniforms([20, 21, 21], 19))
    assert found.accept_uniforms([], 20).shape == (0,)


def test_draw_never_gives_a_token_without_mass(monkeypatch):
    law = torch.tensor([0.0, 0.3, 0.0, 0.0, 0.7, 0.0])
    found = sampler(6)
    for uniform in (2.0**-53, 0.3, float(np.float32(0.3)), 0.5, 1 - 2.0**-53):
        monkeypatch.setattr("pilotfish.sampling.sampler.uniforms", lambda *args, u=uniform: [u])
        assert found.draw(law, 0, 0) in (1, 4)
    assert found.draw(law, 0, 0) == 4


def test_draw_differs_by_position_node_and_round():
    law = torch.full((100_000,), 1e-5)
    found = sampler(100_000)
    drawn = {found.draw(law, *place) for place in [(5, 5, 0), (6, 5, 0), (5, 4, 0), (5, 5, 1)]}
    assert len(drawn) == 4
    assert found.draw(law, 5, 5) == found.draw(law, 5, 5, 0)


def chi_square(tokens, law):
    counts = np.bincount(tokens, minlength=len(law))
    kept = law > 0
    assert counts[~kept].sum() == 0
    return stats.chisquare(counts[kept], law[kept] / law[kept].sum() * len(tokens)).pvalue


LAW = torch.tensor([[0.4, 0.0, 0.3, 0.2, 0.1]])


def test_draw_has_the_law_it_is_given():
    """n = 8,000 draws, false-alarm rate 1e-6, sees a total variation of 0.045 with probability 0.99.

    The control, a law at distance 0.05, must fail.
    """
    found = sampler(5, seed=4)
    tokens = [found.draw(LAW[0], position, 0) for position in range(8_000)]
    assert chi_square(tokens, LAW[0].double().numpy()) > FALSE_ALARM
    assert chi_square(tokens, np.array([0.45, 0.0, 0.25, 0.2, 0.1])) < FALSE_ALARM


def test_choices_have_the_law_of_the_scores():
    """n = 8,000 choices, false-alarm rate 1e-6, sees a total variation of 0.045 with probability 0.99.

    The control, a law at distance 0.05, must fail.
    """
    tokens = gumbel_argmax(LAW.log().expand(8_000, 5), 4, range(8_000))
    assert chi_square(tokens, LAW[0].double().numpy()) > FALSE_ALARM
    assert chi_square(tokens, np.array([0.45, 0.0, 0.25, 0.2, 0.1])) < FALSE_ALARM


def test_coupled_choices_agree_as_often_as_the_formula_says():
    """Agreement of target and draft with shared noise: sum_j 1 / sum_i max(p_i/p_j, q_i/q_j).

    n = 8,000, false-alarm rate 1e-6, standard error 0.0055: sees a rate that is off by 0.04. The control, noise of
    another seed, must fail: it agrees with probability sum p q.
    """
    draft_law = torch.tensor([[0.2, 0.1, 0.35, 0.3, 0.05]])
    p, q = LAW[0].double().numpy() + 1e-12, draft_law[0].double().numpy()
    p = p / p.sum()
    rate = sum(1 / max_sum for max_sum in (np.maximum(p / p[j], q / q[j]).sum() for j in range(5)))
    count = 8_000
    target = np.array(gumbel_argmax(LAW.log().expand(count, 5), 4, range(count)))

    def p_value(draft):
        return stats.binomtest(int((target == np.array(draft)).sum()), count, rate).pvalue

    assert p_value(gumbel_argmax(draft_law.log().expand(count, 5), 4, range(count))) > FALSE_ALARM
    assert p_value(gumbel_argmax(draft_law.log().expand(count, 5), 5, range(count))) < FALSE_ALARM


@pytest.mark.parametrize("temperature", [1e-45, 0.01, 0.3, 0.7, 1.0, 1.5, 40.0])
@pytest.mark.parametrize("width", [5, 64, 1000, 4099])
def test_temperature_in_the_choice_is_the_step_before_it(temperature, width):
    generator = np.random.default_rng(width)
    logits = (generator.standard_normal((40, width)) * 4).astype(np.float32)
    logits[::3, 1::4] = -np.inf
    logits[::5, 2] = -0.0
    logits[7] = 0.0
    real = width - 2
    logits[:, real:] = 1e9
    found, places = sampler(real, seed=5, temperature=temperature), list(range(10, 50))
    divisor = 0.0 if temperature == 1 else Temperature(temperature).divisor
    stepwise = choose(found.pipeline.of_rows(logits, real, prefixes(40)), 5, places)
    assert choose_from_logits(logits, real, divisor, 5, places) == stepwise
    assert found.choices(logits, prefixes(40)) == stepwise
    for odd in (np.inf, np.nan) if divisor else ():
        logits[3, 1] = odd
        assert choose_from_logits(logits, real, divisor, 5, places) is None, (
            "left to the steps, which say what is wrong"
        )
