"""Prompts as the model reads them: text, messages or token ids of a request become token ids, and ids become text.

Owns the limits on prompts and the name the model goes by. Tokenizing takes time: call from a worker thread.
"""

from collections.abc import Sequence

from pilotfish.engine.llm import LLM
from pilotfish.models.tokenizer import Tokenizer
from pilotfish.server.errors import ApiError
from pilotfish.server.protocol import ChatMessage, ChatRequest, CompletionRequest, GenerationRequest
from pilotfish.server.settings import ServerSettings


class PromptReader:
    """Reads prompts for one model.

    Attributes:
        tokenizer: the model's.
        context: most tokens of prompt and output together.
        name: what clients call the model.
    """

    def __init__(self, llm: LLM, name: str, settings: ServerSettings) -> None:
        self.tokenizer: Tokenizer = llm.tokenizer
        self.context: int = llm.max_model_len
        self.name = name
        self._max_tokens = settings.max_prompt_tokens
        self._max_prompts = settings.max_prompts
        # Tokenizing megabytes takes many seconds; what cannot fit in any case is told from its length.
        self._most_characters = self.context * max(map(len, llm.tokenizer.vocabulary().values()))
        self._vocab_size = min(llm.tokenizer.vocab_size, llm.engine.target.config.vocab_size)

    def require_model(self, name: str | None) -> None:
        """Refuses a request that is meant for another model.

        Raises:
            ApiError: 404.
        """
        if name is not None and name != self.name:
            raise ApiError(
                404,
                f"model is {name!r}; expected {self.name!r}, the one served here",
                param="model",
                code="model_not_found",
            )

    def read(self, request: GenerationRequest) -> list[list[int]]:
        """Token ids of each prompt of a request.

        Raises:
            ApiError: 400; too many prompts, a prompt that is empty or too long, an id outside the vocabulary.
            PromptError, InvalidInputError: the chat template refuses the messages, or there is none.
        """
        if isinstance(request, ChatRequest):
            return [self._fitting(self.chat(request.messages), "messages")]
        assert isinstance(request, CompletionRequest), "one of the two"
        return [self._fitting(self._ids(prompt), "prompt") for prompt in self._several(request)]

    def _several(self, request: CompletionRequest) -> Sequence[str | Sequence[int]]:
        given = request.prompt
        if isinstance(given, str):
            return [given]
        if not given:
            raise ApiError(
                400,
                "prompt is empty: expected text, token ids, or a list of these",
                param="prompt",
                code="invalid_value",
            )
        if isinstance(given[0], int):
            return [given]
        if len(given) > self._max_prompts:
            raise ApiError(
                400,
                f"prompt has {len(given)} prompts: expected at most {self._max_prompts}, the server's --max-prompts",
                param="prompt",
                code="invalid_value",
            )
        return given

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if not isinstance(prompt, str):
            ids = self._fitting(list(prompt), "prompt")
            self.require_ids(ids, "prompt")
            return ids
        self.require_length([prompt], "prompt")
        ids = self.tokenizer.encode(prompt)
        if not ids and self.tokenizer.bos_id is not None:
            return [self.tokenizer.bos_id]
        return ids

    def require_ids(self, ids: Sequence[int], param: str) -> None:
        """Refuses ids outside the vocabulary.

        Raises:
            ApiError: 400.
        """
        for place, token in enumerate(ids):
            if not 0 <= token < self._vocab_size:
                raise ApiError(
                    400,
                    f"{param}: token {place} is {token}; expected an id from 0 to {self._vocab_size - 1}",
                    param=param,
                    code="invalid_value",
                )

    def chat(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation.

        Raises:
            ApiError: 400; there is no message, or more text than the context holds.
            PromptError: the chat template refuses the messages.
        """
        if not messages:
            raise ApiError(400, "messages is empty: expected at least one", param="messages", code="invalid_value")
        plain = [message.as_message() for message in messages]
        self.require_length([message["content"] for message in plain], "messages")
        return self.tokenizer.chat(plain, add_generation_prompt=add_generation_prompt)

    def require_length(self, texts: Sequence[str], param: str) -> None:
        """Refuses texts that are too long for the context however they are cut into tokens.

        Raises:
            ApiError: 400.
        """
        length = sum(map(len, texts))
        if length > self._most_characters:
            raise ApiError(
                400,
                f"{param} has {length} characters: expected at most {self._most_characters}, more than which "
                f"{self.context} tokens of this model cannot hold",
                param=param,
                code="context_length_exceeded",
            )

    def _fitting(self, ids: list[int], param: str) -> list[int]:
        if not ids:
            raise ApiError(400, f"{param} has no tokens: expected at least one", param=param, code="invalid_value")
        if self._max_tokens is not None and len(ids) > self._max_tokens:
            raise ApiError(
                400,
                f"{param} has {len(ids)} tokens: expected at most {self._max_tokens}, the server's --max-prompt-tokens",
                param=param,
                code="context_length_exceeded",
            )
        if len(ids) >= self.context:
            raise ApiError(
                400,
                f"{param} has {len(ids)} tokens: expected fewer than the model's context of {self.context}",
                param=param,
                code="context_length_exceeded",
            )
        return ids

    def text(self, ids: Sequence[int]) -> str:
        """A prompt's text, special tokens written out."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)
