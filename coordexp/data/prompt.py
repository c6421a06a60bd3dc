"""The prompt of a model: its chat template around one image and one instruction, as token ids."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from coordexp.errors import TokenizerError, summary

DEFAULT_PROMPT = "Describe all objects in the image with their bounding boxes."
IMAGE_TOKEN = "<|image_pad|>"
# Of every rendering of a chat template. Models that think begin their answers with a thought unless told otherwise;
# templates that know nothing of it ignore it.
TEMPLATE_ARGUMENTS = {"enable_thinking": False}


@dataclass(frozen=True)
class Prompt:
    """The model's own chat template around one image and one fixed instruction, as token ids.

    They are those before and after the image tokens; the answer starts right behind them.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    image_token_id: int

    @classmethod
    def build(
        cls, tokenizer: PreTrainedTokenizerBase, text: str = DEFAULT_PROMPT, *, may_think: bool = False
    ) -> "Prompt":
        """Render the chat template once; only an untouched model ``may_think`` before it answers.

        Raises:
            TokenizerError: if there is no chat template, or it does not place exactly one image, or leaves a thought
                open.
        """
        if not tokenizer.chat_template:
            raise TokenizerError("the tokenizer has no chat template; expected chat_template.jinja in the checkpoint")
        messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        try:
            # transformers annotates a message's content as str only; parts are its documented multimodal form.
            rendered = tokenizer.apply_chat_template(
                messages,  # pyright: ignore[reportArgumentType]
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=TEMPLATE_ARGUMENTS["enable_thinking"],
            )
            ids = tokenizer.encode(str(rendered), add_special_tokens=False)
        except Exception as error:
            raise TokenizerError(
                f"{tokenizer.name_or_path}: the chat template does not render a message to tokens ({summary(error)})"
            ) from error
        image_token_id = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        if not isinstance(image_token_id, int) or ids.count(image_token_id) != 1:
            raise TokenizerError(
                f"{tokenizer.name_or_path}: the chat template must place {IMAGE_TOKEN} exactly once, got: {rendered!r}"
            )
        if not may_think and str(rendered).rfind("<think>") > str(rendered).rfind("</think>"):
            raise TokenizerError(
                f"{tokenizer.name_or_path}: the chat template leaves a thought open (<think>) although enable_thinking "
                "is false; expected one that closes it, such as that of an Instruct model"
            )
        place = ids.index(image_token_id)
        return cls(before=tuple(ids[:place]), after=tuple(ids[place + 1 :]), image_token_id=image_token_id)

    def ids(self, num_image_tokens: int) -> list[int]:
        return [*self.before, *([self.image_token_id] * num_image_tokens), *self.after]

    def __len__(self) -> int:
        """Return the number of prompt tokens besides the image."""
        return len(self.before) + len(self.after)
