"""The prompt of a model: its chat template around one image and one instruction, as token ids."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from coordexp.errors import TokenizerError, summary

DEFAULT_PROMPT = "Describe all objects in the image with their bounding boxes."
IMAGE_TOKEN = "<|image_pad|>"
# Passed to every rendering of a chat template. Models that think begin an answer with a thought unless they are told
# otherwise. Templates that do not know the argument ignore it.
TEMPLATE_ARGUMENTS = {"enable_thinking": False}


@dataclass(frozen=True)
class Prompt:
    """The model's own chat template around one image and one fixed instruction.

    Attributes:
        before: token ids before the image tokens.
        after: token ids after the image tokens; the answer starts right behind them.
        image_token_id: id of the token that stands for a merged image patch.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    image_token_id: int

    @classmethod
    def build(
        cls, tokenizer: PreTrainedTokenizerBase, text: str = DEFAULT_PROMPT, *, may_think: bool = False
    ) -> "Prompt":
        """Render the chat template once.

        Args:
            tokenizer: the model's own, with its chat template.
            text: the instruction.
            may_think: whether the model may write a thought before its answer, as only an untouched model does.

        Raises:
            TokenizerError: if there is no chat template, or it does not place exactly one image, or leaves a thought
                open.
        """
        if not tokenizer.chat_template:
            raise TokenizerError("the tokenizer has no chat template; expected chat_template.jinja in the checkpoint")
        rendered, ids = _rendered(tokenizer, text)
        image_token_id = tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        if not isinstance(image_token_id, int) or ids.count(image_token_id) != 1:
            raise TokenizerError(
                f"{tokenizer.name_or_path}: the chat template must place {IMAGE_TOKEN} exactly once, got: {rendered!r}"
            )
        leaves_thought_open = rendered.rfind("<think>") > rendered.rfind("</think>")
        if leaves_thought_open and not may_think:
            raise TokenizerError(
                f"{tokenizer.name_or_path}: the chat template leaves a thought open (<think>) although enable_thinking "
                "is false; expected a template that closes it, such as that of an Instruct model"
            )
        image_place = ids.index(image_token_id)
        return cls(before=tuple(ids[:image_place]), after=tuple(ids[image_place + 1 :]), image_token_id=image_token_id)

    def ids(self, num_image_tokens: int) -> list[int]:
        image_tokens = [self.image_token_id] * num_image_tokens
        return [*self.before, *image_tokens, *self.after]

    def __len__(self) -> int:
        """Return the number of prompt tokens besides the image."""
        return len(self.before) + len(self.after)


def _rendered(tokenizer: PreTrainedTokenizerBase, text: str) -> tuple[str, list[int]]:
    """Return a user's message with one image and the instruction, as text and as token ids."""
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
    try:
        # transformers annotates a message's content as str only; a list of parts is its documented multimodal form.
        rendered = tokenizer.apply_chat_template(
            messages,  # pyright: ignore[reportArgumentType]
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=TEMPLATE_ARGUMENTS["enable_thinking"],
        )
        ids = tokenizer.encode(str(rendered), add_special_tokens=False)
    # A template is a program of the checkpoint's author: it may raise whatever it likes.
    except Exception as error:
        raise TokenizerError(
            f"{tokenizer.name_or_path}: the chat template does not render a message to tokens ({summary(error)})"
        ) from error
    return str(rendered), ids
