"""Questions that are asked in two ways, and whether both ways have one answer."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from contradictions import Contradiction, compare, compare_documents
from drawing import Asked, Draws
from memory import falls
from program import Answer, Program

Check = Callable[[Program, Draws], list[Contradiction]]

#: What --max-batch says beside the answer at its batch.
OF_THE_SEARCH = {"max_batch", "safe_max_batch", "batches"}
OF_THE_LENGTH = {"max_length", "frontier"}


class Refused(Exception):
    """The drawn question is none: other words are drawn."""


def refusals(kind: str, first: Answer, second: Answer) -> list[Contradiction] | None:
    """None where both answered. A question that is refused is refused in both ways."""
    if not first.refused and not second.refused:
        return None
    if first.refused and second.refused:
        raise Refused(first.err)
    return [Contradiction(kind, first, second, [("exit code", first.code, second.code)])]


def ranges_of(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for group in ("ranges", "unlimited"):
        for name, found in document[group].items():
            yield f"{group}.{name}", found


#: By verdict.
EXIT_CODES = {"fits": 0, "does_not_fit": 1, "unknown": 3}


def sound(answer: Answer) -> list[Contradiction]:
    """What one document says of itself: low <= best <= high, the account is the whole, one verdict."""
    document = answer.document
    wrong: list[tuple[str, Any, Any]] = []
    for name, found in ranges_of(document):
        if not found["low"] <= found["best"] <= found["high"]:
            wrong.append((name, found["low"], found["best"]))
            wrong.append((name, found["best"], found["high"]))
    account = sum(line["bytes"] for line in document["account"])
    if account != document["device"]:
        wrong.append(("account and device", account, document["device"]))
    if document["allocated"] > document["reserved"] or document["reserved"] > document["device"]:
        wrong.append(("allocated and reserved", document["allocated"], document["reserved"]))
    if document["surely_fits"] and not document["fits"]:
        wrong.append(("surely_fits and fits", True, False))
    if EXIT_CODES[document["verdict"]] != answer.code:
        wrong.append(("verdict and exit code", document["verdict"], answer.code))
    if document["verdict"] == "fits" and not document["surely_fits"]:
        wrong.append(("verdict and surely_fits", "fits", False))
    if document["verdict"] == "does_not_fit" and document["fits"]:
        wrong.append(("verdict and fits", "does_not_fit", True))
    if (document["verdict"] == "unknown") != bool(document["unknown"]):
        wrong.append(("verdict and unknown", document["verdict"], document["unknown"]))
    if document["surely_fits"] and document["ranges"]["device"]["high"] > document["memory"]:
        wrong.append(
            (
                "surely_fits: high and memory",
                document["ranges"]["device"]["high"],
                document["memory"],
            )
        )
    wrong += ranks_of(document)
    return [Contradiction("one document", answer, answer, wrong)] if wrong else []


def ranks_of(document: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """The stage that is shown needs most, and all fit or the job does not."""
    ranks = document.get("ranks")
    if not ranks:
        return []
    wrong: list[tuple[str, Any, Any]] = []
    shown = [rank for rank in ranks if rank["shown"]]
    if len(shown) != 1:
        return [("stages shown", 1, len(shown))]
    for name in ("allocated", "reserved", "device"):
        if shown[0][name] != document[name]:
            wrong.append(
                (
                    f"{name}: row of stage {shown[0]['stage']} and headline",
                    shown[0][name],
                    document[name],
                )
            )
    most = max(ranks, key=lambda rank: rank["device"])
    # A stage that runs out stands before one that takes more and fits.
    if shown[0]["fits"] and most["device"] > shown[0]["device"]:
        wrong.append(
            (f"device: stage {most['stage']} and stage shown", most["device"], shown[0]["device"])
        )
    if document["fits"] and not all(rank["fits"] for rank in ranks):
        wrong.append(("fits, and each stage fits", True, False))
    return wrong


def ask(program: Program, asked: Asked, *more: object) -> Answer:
    return program.ask(*asked.words, *more, "--json")


def check_largest(program: Program, draws: Draws, *, pipeline: bool = False) -> list[Contradiction]:
    """--max-batch against --batch at what it says."""
    asked = draws.asked(pipeline=pipeline)
    found = ask(program, asked, "--max-batch")
    if found.refused:
        raise Refused(found.err)
    document = found.document
    sure, most = document["safe_max_batch"], document["max_batch"]
    wrong = sound(found)
    at = ask(program, asked, "--batch", document["batch"])
    if (refused := refusals("--max-batch and --batch", found, at)) is not None:
        return wrong + refused
    wrong += compare_documents("--max-batch and --batch", found, at, OF_THE_SEARCH)
    if sure > most:
        wrong += compare("safe_max_batch and max_batch", found, found, [("largest", sure, most)])
    told: list[tuple[int, str, bool]] = []
    if sure > 0:
        told.append((sure, "surely_fits", True))
    if most > 0:
        told.append((most, "fits", True))
    untried = document["batches"]["untried_below"]
    told.append((untried or most + 1, "fits", False))
    if 1 < sure and document["batches"]["tried_every"] == 1:
        told.append((draws.draw.randint(1, sure), "surely_fits", True))
    for batch, name, expected in told:
        if batch > 1 << 24:
            continue
        one = ask(program, asked, "--batch", batch)
        if one.refused:
            continue
        said = one.document[name]
        wrong += compare(
            "--max-batch and --batch", found, one, [(f"{name} at batch {batch}", expected, said)]
        )
        wrong += sound(one)
    return wrong


def check_cards(program: Program, draws: Draws, *, pipeline: bool = False) -> list[Contradiction]:
    """--gpu any against two cards by name."""
    asked = draws.asked(pipeline=pipeline)
    every = program.ask(*asked.job, "--batch", asked.batch, "--gpu", "any", "--json")
    wrong: list[Contradiction] = []
    cards = {} if every.refused else {card["gpu"]: card for card in every.document["cards"]}
    # The cards on the edge are those that matter.
    edge = [
        name
        for name, card in cards.items()
        if 0.8 < card["device_bytes"] / card["memory_bytes"] < 1.25
    ]
    for name in sorted({draws.draw.choice(edge or draws.cards), draws.draw.choice(draws.cards)}):
        one = program.ask(*asked.job, "--batch", asked.batch, "--gpu", name, "--json")
        # Other processes leave nothing of it, or the step was too long to try all cards.
        if not every.refused and name not in cards:
            if not one.refused and name not in every.document["left_out"]:
                wrong += compare("--gpu any and by name", every, one, [("listed", False, True)])
            continue
        if (refused := refusals("--gpu any and by name", every, one)) is not None:
            wrong += refused
            continue
        card, document = cards[name], one.document
        figures = [
            ("fits", card["fits"], document["fits"]),
            ("verdict", card["verdict"], document["verdict"]),
            ("surely_fits", card["surely_fits"], document["surely_fits"]),
            ("device", card["device_bytes"], document["device"]),
            ("memory", card["memory_bytes"], document["memory"]),
            ("step_us", round(card["step_us"]), document["step_us"]),
        ]
        # Half a microsecond is rounded in Python and C++ to different sides.
        figures = [one for one in figures if one[0] != "step_us" or abs(one[1] - one[2]) > 1]
        wrong += compare("--gpu any and by name", every, one, figures) + sound(one)
    verdicts = {card["verdict"] for card in cards.values()}
    best = next((one for one in ("fits", "unknown") if one in verdicts), "does_not_fit")
    if not every.refused and every.code != EXIT_CODES[best]:
        wrong += compare("exit code", every, every, [(best, EXIT_CODES[best], every.code)])
    return wrong


def written_bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"


def check_text(program: Program, draws: Draws) -> list[Contradiction]:
    """With and without --json."""
    asked = draws.asked(pipeline=draws.draw.random() < 0.2)
    batch = ["--batch", asked.batch] if draws.draw.random() < 0.7 else ["--max-batch"]
    one = ask(program, asked, *batch)
    text = program.ask(*asked.words, *batch)
    if (refused := refusals("with and without --json", one, text)) is not None:
        return refused
    document = one.document
    figures: list[tuple[str, Any, Any]] = [("exit code", one.code, text.code)]
    device = written_bytes(document["device"])
    if document["batch"] > 0:
        figures.append((f"text has {device}", True, device in text.out))
    return compare("with and without --json", one, text, figures) + sound(one)


def page_data(page: str) -> dict[str, Any]:
    start = page.index('<script type="application/json"')
    begin = page.index(">", start) + 1
    found = json.loads(page[begin : page.index("</script>", begin)])
    assert isinstance(found, dict)
    return found


def check_page(program: Program, draws: Draws, *, pipeline: bool = False) -> list[Contradiction]:
    """With and without --html, and what the page says of the chosen batch."""
    asked = draws.asked(pipeline=pipeline)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        plain = ask(program, asked, "--batch", asked.batch)
        paged = ask(program, asked, "--batch", asked.batch, "--html", page)
        if plain.refused or paged.refused:
            # A job with fixed batches has no page.
            fixed = "fixed" in paged.err or "as it stands" in paged.err or "{batch}" in paged.err
            if fixed:
                raise Refused(paged.err)
            return refusals("with and without --html", plain, paged) or []
        wrong = compare_documents("with and without --html", plain, paged, set())
        if plain.code != paged.code:
            wrong += compare(
                "with and without --html", plain, paged, [("exit code", plain.code, paged.code)]
            )
        data = page_data(page.read_text())
    document = plain.document
    chosen = [point for point in data["trade_offs"] if point["chosen"]]
    wrong += compare("answer and page", plain, paged, [("chosen points", 1, len(chosen))])
    names = ("allocated", "reserved", "device", "fits", "surely_fits")
    for point in chosen[:1]:
        wrong += compare(
            "answer and page", plain, paged, [(name, document[name], point[name]) for name in names]
        )
        high = document["ranges"]["device"]["high"]
        wrong += compare("answer and page", plain, paged, [("high", high, point["high"])])
    inner = {"frontier", *OF_THE_SEARCH}
    figures = [
        (key, value, data["prediction"].get(key))
        for key, value in document.items()
        if key not in inner
    ]
    return wrong + compare("answer and page", plain, paged, figures)


def check_snapshot(program: Program, draws: Draws) -> list[Contradiction]:
    """The answer against --snapshot, explained."""
    asked = draws.asked(pipeline=draws.draw.random() < 0.2)
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder) / "run.pickle"
        answer = ask(program, asked, "--batch", asked.batch, "--snapshot", snapshot)
        if answer.refused:
            raise Refused(answer.err)
        explained = program.ask("explain", snapshot, "--json")
        if explained.refused:
            return compare(
                "--snapshot explained",
                answer,
                explained,
                [("exit code", answer.code, explained.code)],
            )
    document, rank = answer.document, explained.document["ranks"][0]
    account = {line["what"]: line["bytes"] for line in document["account"]}
    found = {line["what"]: line["bytes"] for line in rank["account"]}
    figures = [
        ("allocated", document["allocated"], rank["peak_allocated"]),
        ("reserved", document["reserved"], rank["peak_reserved"]),
    ]
    kinds = (
        "parameters",
        "gradients",
        "optimizer_state",
        "activations",
        "temporaries",
        "workspaces",
    )
    figures += [(f"account: {what}", account.get(what, 0), found.get(what, 0)) for what in kinds]
    return compare("--snapshot explained", answer, explained, figures) + sound(answer)


def check_stages(program: Program, draws: Draws) -> list[Contradiction]:
    """A pipeline against each of its stages alone."""
    asked = draws.asked(pipeline=True)
    whole = ask(program, asked, "--batch", asked.batch)
    if whole.refused:
        raise Refused(whole.err)
    wrong = sound(whole)
    rank = draws.draw.choice(whole.document.get("ranks") or [None])
    if rank is None:
        return wrong
    at = asked.flags.index("--mesh") + 1
    flags = [*asked.flags]
    flags[at] += f":stage{rank['stage']}"
    one = ask(program, Asked(asked.file, asked.gpu, flags, asked.batch), "--batch", asked.batch)
    if (refused := refusals("a stage of --mesh and alone", whole, one)) is not None:
        return wrong + refused
    document = one.document
    figures = [(name, rank[name], document[name]) for name in ("allocated", "reserved", "device")]
    if not document["growth"] and not (document.get("host") or {}).get("room"):
        figures.append(("fits", rank["fits"], document["fits"]))
    return wrong + compare("a stage of --mesh and alone", whole, one, figures)


#: Of a configuration, as plan and predict write them.
OF_A_CONFIGURATION = ("device", "reserved", "room", "fits", "step_us", "passes")


def figures_of(way: dict[str, Any], document: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """A configuration of plan beside predict."""
    for name in OF_A_CONFIGURATION:
        said = way[name]
        if not isinstance(said, dict):
            yield name, said, document[name]
            continue
        for end, found in said.items():
            # Ends of a range are not computed for all.
            if found is not None:
                yield f"{name}.{end}", found, document["ranges"][name][end]
    # In plan it also keeps its cache.
    if way["surely_fits"]:
        yield "surely_fits", True, document["surely_fits"]


def check_plan(program: Program, draws: Draws) -> list[Contradiction]:
    """Configurations of plan --json against predict --set."""
    asked = draws.asked()
    gpus = draws.draw.choice([[], [], ["--gpus", "2"], ["--gpus", "4"]])
    planned = program.ask("plan", asked.file, "--gpu", asked.gpu, *gpus, "--json")
    if planned.refused:
        raise Refused(planned.err)
    ways = planned.document["ways"]
    wrong: list[Contradiction] = []
    for way in draws.draw.sample(ways, min(2, len(ways))):
        sets = [f"{name}={value}" for name, value in way["set"].items()]
        levers = [word for one in sets for word in ("--set", one)]
        words = ["predict", asked.file, "--gpu", asked.gpu, "--batch", way["batch"], *levers]
        one = program.ask(*words, "--json")
        if one.refused:
            codes = [("exit code", planned.code, one.code)]
            wrong += compare("plan and predict --set", planned, one, codes)
            continue
        wrong += compare("plan and predict --set", planned, one, figures_of(way, one.document))
        wrong += sound(one)
    return wrong


def check_growing(program: Program, draws: Draws) -> list[Contradiction]:
    """A larger batch, or a longer sequence, never takes less allocated memory."""
    asked = draws.asked()
    larger = asked.batch + draws.draw.choice([1, 1, asked.batch])
    small, large = (ask(program, asked, "--batch", batch) for batch in (asked.batch, larger))
    if small.refused or large.refused:
        raise Refused(small.err)
    return falls(program, asked, small, large) + sound(small) + sound(large)


def check_length(program: Program, draws: Draws) -> list[Contradiction]:
    """--max-length against --length at what it says, and no length takes less than a shorter one."""
    asked = draws.asked(pipeline=draws.draw.random() < 0.2)
    asked.file = draws.draw.choice(draws.with_length)
    found = ask(program, asked, "--batch", asked.batch, "--max-length")
    if found.refused:
        raise Refused(found.err)
    longest = found.document["max_length"]
    wrong = sound(found)
    for length, name, expected in (
        (longest["sure"], "surely_fits", True),
        (longest["most"], "fits", True),
        (longest["most"] + longest["tried_every"], "fits", False),
    ):
        # 0: none fits.
        if length == 0 or (longest["most"] == 0 and not expected):
            continue
        one = ask(program, asked, "--batch", asked.batch, "--length", length)
        if one.refused:
            continue
        wrong += compare(
            "--max-length and --length",
            found,
            one,
            [(f"{name} at {length}", expected, one.document[name])],
        )
        if length == found.document["length"]["value"]:
            wrong += compare_documents("--max-length and --length", found, one, OF_THE_LENGTH)
    return wrong


def of_pipelines(check: Callable[..., list[Contradiction]]) -> Check:
    def checked(program: Program, draws: Draws) -> list[Contradiction]:
        return check(program, draws, pipeline=True)

    return checked


#: Each with how often it is drawn.
CHECKS: dict[str, tuple[Check, int]] = {
    "largest": (check_largest, 4),
    "largest-of-pipeline": (of_pipelines(check_largest), 2),
    "cards": (check_cards, 3),
    "cards-of-pipeline": (of_pipelines(check_cards), 1),
    "text": (check_text, 3),
    "page": (check_page, 2),
    "page-of-pipeline": (of_pipelines(check_page), 1),
    "snapshot": (check_snapshot, 4),
    "stages": (check_stages, 3),
    "plan": (check_plan, 1),
    "growing": (check_growing, 5),
    "length": (check_length, 2),
}
