"""The prompt: the model's own chat template around one image and one fixed instruction."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from coordexp.errors import TokenizerError

DEFAULT_PROMPT = "Describe all objects in the image with their bounding boxes."
IMAGE_TOKEN = "<|image_pad|>"


@dataclass(frozen=True)
class Prompt:
    """Token ids before and after the image tokens; the answer starts right behind ``after``."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    image_token_id: int

    @classmethod
    def build(cls, tokenizer: PreTrainedTokenizerBase, text: str = DEFAULT_PROMPT) -> "Prompt":
        """Render the chat template once.

        Raises:
            TokenizerError: if there is no chat template, or it does not place exactly one image.
        """
        if not tokenizer.chat_template:
            raise TokenizerError("the tokenizer has no chat template; expected chat_template.jinja in the checkpoint")
        messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        # transformers annotates a message's content as str only; parts are its documented multimodal form.
        rendered = tokenizer.apply_chat_template(
            messages,  # pyright: ignore[reportArgumentType]
            tokenize=False,
            add_generation_prompt=True,
        )
        ids = tokenizer.encode(str(rendered), add_special_tokens=False)
        image_token_id = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        if not isinstance(image_token_id, int) or ids.count(image_token_id) != 1:
            raise TokenizerError(f"the chat template must place {IMAGE_TOKEN} exactly once, got: {rendered!r}")
        place = ids.index(image_token_id)
        return cls(before=tuple(ids[:place]), after=tuple(ids[place + 1 :]), image_token_id=image_token_id)

    def ids(self, num_image_tokens: int) -> list[int]:
        """Return the whole prompt for an image of ``num_image_tokens`` tokens."""
        return [*self.before, *([self.image_token_id] * num_image_tokens), *self.after]

    def __len__(self) -> int:
        """Return the number of prompt tokens besides the image."""
        return len(self.before) + len(self.after)
