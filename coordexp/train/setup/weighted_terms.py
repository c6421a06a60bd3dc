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
    """Translate the flags and weights of a configuration into loss terms.

    Returns:
        The seven terms of the specification, with weight 0 if their switch is off, so that all groups log the same; in
        the text arm only those two that do not read bins. The terms of ``objective.extra`` follow by name.

    Raises:
        ConfigError: if ``objective.extra`` names a wrong term or knob, or no term that is on sees coordinates.
    """
    terms = _terms_of_the_specification(config)
    switched = {weighted.term.name for weighted in terms}
    for name, extra in sorted(config.objective.extra.items()):
        terms.append(WeightedTerm(_extra_term(config, name, extra, switched=switched), extra.weight))
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
    switched_terms: list[Term] = [
        CoordCe(),
        BoxL1(),
        BoxGiou(),
        SoftCe.model_validate(target),
        W1.model_validate(target),
        Gate(temperature=distribution.temperature),
    ]
    terms = [WeightedTerm(TextCe(), 1.0)]
    terms += [WeightedTerm(term, config.term_weights[term.name].value) for term in switched_terms]
    if config.text_arm:
        return [weighted for weighted in terms if weighted.term.reads == "any"]
    return terms


def build_criterion(config: RunConfig) -> Criterion:
    """Return the weighted sum of a configuration's loss terms."""
    return Criterion(weighted_terms(config))


def _extra_term(config: RunConfig, name: str, extra: ExtraTerm, *, switched: set[str]) -> Term:
    """Build a term of ``objective.extra``; ``switched`` are the terms that have a switch of their own."""
    if name in switched:
        raise ConfigError(
            f"objective.extra.{name}: this term has a switch of its own; set its weight there, in objective or "
            "custom.coord_soft_ce_w1"
        )
    term_classes = loss_terms()
    if name not in term_classes:
        raise ConfigError(
            f"objective.extra.{name}: there is no such loss term; {nearest_of(name, set(term_classes) - switched)}"
        )
    coordinates = "digits" if config.text_arm else "bins"
    reads = term_classes[name].reads
    if reads not in (coordinates, "any"):
        fitting = {term_name for term_name, term in term_classes.items() if term.reads in (coordinates, "any")}
        raise ConfigError(
            f"objective.extra.{name}: this term reads {reads}, but with custom.coord_tokens.enabled: "
            f"{str(not config.text_arm).lower()} coordinates are written as {coordinates}; expected one of "
            f"{', '.join(sorted(fitting - switched))}"
        )
    return _with_knobs(term_classes[name], extra)


def _with_knobs(term: type[Term], extra: ExtraTerm) -> Term:
    key = f"objective.extra.{term.name}"
    unknown = [knob for knob in extra.knobs if knob not in term.model_fields]
    if unknown:
        knobs = ["weight", *term.model_fields]
        raise ConfigError(
            f"{key}.{unknown[0]}: got {extra.knobs[unknown[0]]!r}, but {term.name} takes {', '.join(knobs)}; "
            f"{nearest_of(unknown[0], knobs)}"
        )
    try:
        return term.model_validate(extra.knobs)
    except ValidationError as error:
        raise ConfigError("; ".join(described(detail, above=key) for detail in error.errors())) from None
