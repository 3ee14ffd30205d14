"""`pilotfish chat`: an interactive conversation."""

import sys

from pilotfish.cli import options


def chat(
    model: options.ModelName = options.DEMO_MODEL,
    temperature: options.Temperature = 0.7,
    top_k: options.TopK = 0,
    top_p: options.TopP = 0.9,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 512,
    speculative_config: options.SpeculativeConfigText = None,
    method: options.Method = None,
    draft_model: options.DraftModel = None,
    num_speculative_tokens: options.NumSpeculativeTokens = None,
    verification: options.Verification = None,
    executor: options.ExecutorName = "auto",
    weights: options.Weights = "auto",
    threads: options.Threads = None,
    recalibrate: options.Recalibrate = False,
) -> None:
    """Talk to the model. An empty line or end of input ends the conversation."""
    params = options.sampling_params(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=None,
        stop_token_ids=None,
        ignore_eos=False,
    )
    config = options.speculative_config(
        speculative_config,
        method=method,
        model=draft_model,
        num_speculative_tokens=num_speculative_tokens,
        verification=verification,
    )
    llm = options.load_llm(model, config, executor=executor, weights=weights, threads=threads, recalibrate=recalibrate)

    from pilotfish.cli.terminal import print_stream, speed

    messages: list[dict[str, str]] = []
    while (question := _ask()) is not None:
        messages.append({"role": "user", "content": question})
        output = print_stream(llm.stream(messages, params))
        messages.append({"role": "assistant", "content": output.text})
        sys.stderr.write(f"[{speed(output)}]\n\n")


def _ask() -> str | None:
    """The user's next message, or `None` at the end."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip() or None
    except EOFError:
        return None
