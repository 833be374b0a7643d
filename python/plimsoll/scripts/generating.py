"""transformers' `generate`: as many tokens as are asked for come, whatever they are, and a few of
them are seen."""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch

from ..base.errors import CaptureError
from ..base.notes import Note
from ..base.patching import Patch
from .serving import TOKENS, Serving

_MODULE = "transformers.generation.utils"
#: Loops of which each round is a token.
_LOOPS = ("_sample", "_beam_search", "_greedy_search", "_beam_sample")


def is_there() -> bool:
    return hasattr(sys.modules.get(_MODULE), "GenerationMixin")


class Generating:
    """`serves`: the script has trained nothing so far; else it is let be. `whole`: every token is
    to be seen."""

    def __init__(
        self, serving: Serving, note: Note, serves: Callable[[], bool], whole: bool
    ) -> None:
        self._serving = serving
        self._note = note
        self._serves = serves
        self._whole = whole
        #: By call of generate that is open.
        self._open: list[_Loop] = []

    def patches(self) -> list[Patch]:
        mixin = sys.modules[_MODULE].GenerationMixin
        found = [
            Patch(mixin, "generate", self._generate(mixin.generate)),
            Patch(
                mixin, "_has_unfinished_sequences", self._goes_on(mixin._has_unfinished_sequences)
            ),
        ]
        if hasattr(mixin, "_valid_auto_compile_criteria"):
            real = mixin._valid_auto_compile_criteria
            found.append(Patch(mixin, "_valid_auto_compile_criteria", self._compiles(real)))
        for name in ("generate_batch", "init_continuous_batching"):
            if hasattr(mixin, name):
                found.append(Patch(mixin, name, _no_batching))
        return found

    def _generate(self, real: Any) -> Any:
        def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
            loop = _Loop()
            self._open.append(loop)
            try:
                made = real(model, *args, **kwargs)
            finally:
                self._open.pop()
            return loop.whole(made)

        return generate

    def _goes_on(self, real: Any) -> Any:
        def has_unfinished(
            model: Any, this_peer_finished: Any, synced_gpus: bool, device: Any
        ) -> bool:
            caller = sys._getframe(1)
            if caller.f_code.co_name not in _LOOPS or not self._open:
                raise CaptureError(
                    f"how generate() goes on in {caller.f_code.co_name.strip('_')} depends on the "
                    "tokens, and a capture has none",
                    hint="Greedy search, sampling and beam search are followed",
                )
            loop = self._open[-1]
            if loop.wanted is None:
                values = caller.f_locals
                self._begin(loop, model, values)
                if type(values) is dict:  # until Python 3.12 a copy, which the frame would keep
                    values.clear()
            assert loop.wanted is not None
            if loop.seen < loop.most:
                self._serving.begin()
                loop.seen += 1
                return True
            self._serving.cut_short(loop.seen, loop.wanted - loop.seen, must_be_even=True)
            return False

        return has_unfinished

    def _begin(self, loop: _Loop, model: Any, values: dict[str, Any]) -> None:
        config, ids = values["generation_config"], values["input_ids"]
        criteria = values.get("stopping_criteria")
        longest = getattr(criteria, "max_length", None) or config.max_length
        loop.length = int(longest)
        loop.wanted = max(loop.length - ids.shape[1], 1)
        loop.most = loop.wanted
        # What is given back with all tokens has something of each.
        if not self._whole and self._serves() and not config.return_dict_in_generate:
            if not _window(model, loop.length):
                loop.most = min(loop.wanted, TOKENS)
        self._note(
            "generate() is taken to go on to its last token: no sequence ends sooner than "
            "max_new_tokens or max_length say"
        )

    def _compiles(self, real: Any) -> Any:
        def compiles(model: Any, *args: Any, **kwargs: Any) -> bool:
            if real(model, *args, **kwargs):
                self._note(
                    "generate() compiles the model for a static cache (CUDA graphs); the figures "
                    "are those of eager mode, which disable_compile=True in the generation's "
                    "configuration gives"
                )
            return False

        return compiles


class _Loop:
    """One call of generate."""

    def __init__(self) -> None:
        self.wanted: int | None = None
        #: Tokens that are to be seen, and were.
        self.most = 0
        self.seen = 0
        self.length = 0

    def whole(self, made: Any) -> Any:
        """With as many tokens as there would be."""
        if self.wanted is None:
            return made
        if isinstance(made, torch.Tensor):
            return self._lengthened(made)
        sequences = getattr(made, "sequences", None)
        if isinstance(sequences, torch.Tensor):
            made["sequences"] = self._lengthened(sequences)
        return made

    def _lengthened(self, ids: torch.Tensor) -> torch.Tensor:
        if ids.dim() != 2 or ids.shape[1] == self.length:
            return ids
        return ids.new_zeros((ids.shape[0], self.length))


def _window(model: Any, length: int) -> bool:
    """Whether a cache stops growing before the last token."""
    config = model.config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    sizes = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    used = getattr(text, "use_sliding_window", True)
    return bool(used) and any(isinstance(size, int) and size < length for size in sizes)


def _no_batching(model: Any, *args: Any, **kwargs: Any) -> Any:
    raise CaptureError(
        "continuous batching makes its cache as large as the card's free memory allows, and which "
        "requests run together depends on their tokens",
        hint="Ask with generate(), or how many tokens a card serves: plimsoll predict --engine",
    )
