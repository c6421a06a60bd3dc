"""The objective: the one place where a configuration becomes weighted loss terms."""

from pydantic import ValidationError

from coordexp.config.explain import described
from coordexp.config.schema import RunConfig
from coordexp.config.schema.objective import ExtraTerm
from coordexp.errors import ConfigError, nearest_of
from coordexp.losses.criterion import Criterion, WeightedTerm
from coordexp.losses.term import Term
from coordexp.losses.terms import loss_terms
from coordexp.losses.terms.box_giou import BoxGiou
from coordexp.losses.terms.box_l1 import BoxL1
from coordexp.losses.terms.coord_ce import CoordCe
from coordexp.losses.terms.gate import Gate
from coordexp.losses.terms.soft_ce import SoftCe
from coordexp.losses.terms.text_ce import TextCe
from coordexp.losses.terms.w1 import W1


def weighted_terms(config: RunConfig) -> tuple[WeightedTerm, ...]:
    """Translate the flags and weights of a configuration into loss terms; a ConfigError names a wrong one.

    The seven terms of the specification are always there, with weight 0 where their switch is off, so that all
    groups log the same; in the text arm those two that do not read bins. Those of ``objective.extra`` follow by name.
    """
    known = loss_terms()
    terms = _terms_of_the_specification(config)
    switched = {weighted.term.name for weighted in terms}
    written = "digits" if config.text_arm else "bins"
    for name, extra in sorted(config.objective.extra.items()):
        if name in switched:
            raise ConfigError(
                f"objective.extra.{name}: this term has a switch of its own; set its weight there, in objective "
                "or custom.coord_soft_ce_w1"
            )
        if name not in known:
            raise ConfigError(
                f"objective.extra.{name}: there is no such loss term; {nearest_of(name, set(known) - switched)}"
            )
        if known[name].reads not in (written, "any"):
            fitting = [other for other, term in known.items() if term.reads in (written, "any")]
            raise ConfigError(
                f"objective.extra.{name}: this term reads {known[name].reads}, but with custom.coord_tokens.enabled: "
                f"{str(not config.text_arm).lower()} coordinates are written as {written}; expected one of "
                f"{', '.join(sorted(set(fitting) - switched))}"
            )
        terms.append(WeightedTerm(_with_knobs(known[name], extra), extra.weight))
    on = [weighted.term for weighted in terms if weighted.weight > 0]
    if not any(term.supervises_coordinates() for term in on):
        raise ConfigError(config.unsupervised(term.name for term in on if term.name in config.objective.extra))
    return tuple(terms)


def _terms_of_the_specification(config: RunConfig) -> list[WeightedTerm]:
    distribution = config.custom.coord_soft_ce_w1
    target = {
        "sigma": distribution.target_sigma,
        "truncate": distribution.target_truncate,
        "temperature": distribution.temperature,
    }
    specified = (
        CoordCe(), BoxL1(), BoxGiou(), SoftCe.model_validate(target), W1.model_validate(target),
        Gate(temperature=distribution.temperature),
    )  # fmt: skip
    terms = [WeightedTerm(TextCe(), 1.0)]
    terms += [WeightedTerm(term, config.term_weights[term.name].value) for term in specified]
    return [weighted for weighted in terms if not config.text_arm or weighted.term.reads == "any"]


def build_criterion(config: RunConfig) -> Criterion:
    return Criterion(weighted_terms(config))


def _with_knobs(term: type[Term], extra: ExtraTerm) -> Term:
    key = f"objective.extra.{term.name}"
    unknown = [knob for knob in extra.knobs if knob not in term.model_fields]
    if unknown:
        has = f"{term.name} takes weight" + "".join(f", {knob}" for knob in term.model_fields)
        raise ConfigError(
            f"{key}.{unknown[0]}: got {extra.knobs[unknown[0]]!r}, but {has}; "
            f"{nearest_of(unknown[0], ['weight', *term.model_fields])}"
        )
    try:
        return term.model_validate(extra.knobs)
    except ValidationError as error:
        raise ConfigError("; ".join(described(detail, above=key) for detail in error.errors())) from None
