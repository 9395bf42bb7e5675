"""What an ad is: fields, limits, and the text that the encoder sees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MAX_AD_ID = 2**63 - 1
MAX_TITLE_CHARS = 300
MAX_DESCRIPTION_CHARS = 2000
MAX_ADVERTISER_CHARS = 100
MAX_CATEGORY_CHARS = 100
MIN_AMOUNT_USD = 1e-6  # scoring counts in millionths of a dollar; a smaller bid would be none
MAX_BID_USD = 1000.0
MAX_AMOUNT_USD = 1e9
MAX_LOCATIONS = 1000
MAX_LOCATION_CHARS = 64

GENDERS = ("female", "male")
AGE_BANDS = ("13-17", "18-24", "25-34", "35-49", "50-64", "65+")
DEVICES = ("desktop", "mobile", "tablet")

MAX_TEXT_WORDS = 60
MAX_TEXT_CHARS = 480


@dataclass(frozen=True, slots=True)
class Ad:
    """One ad of a catalogue; README.md of this folder lists limits and meaning of every field.

    An empty targeting list admits everyone. Amounts are US dollars.
    """

    ad_id: int
    title: str
    advertiser: str
    bid_usd: float
    description: str = ""
    category: str = ""
    product_price_usd: float | None = None
    locations: tuple[str, ...] = ()
    genders: tuple[str, ...] = ()
    age_bands: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    daily_budget_usd: float | None = None

    @property
    def text(self) -> str:
        """What the encoder embeds, see `ad_text`."""
        return ad_text(self.title, self.advertiser, self.category, self.description)


def ad_text(title: str, advertiser: str, category: str, description: str) -> str:
    """The text of an ad for the encoder: title, advertiser, category, description, at most 60 words.

    The title leads because it says what is sold, and because truncation takes the end. Advertiser and
    category follow where the title lacks them: people search for names ("fernway insurance") and for kinds
    ("laptop") that many titles do not repeat. The description comes last and is dropped where the title
    already says it. 60 words are about 80 WordPiece tokens: well inside the 128 that MiniLM was trained on,
    while the cost of embedding grows with every token. The limit in characters bounds scripts that put no
    spaces between words.
    """
    said = title.casefold()
    parts = [title]
    parts += [part for part in (advertiser, category, description) if part and part.casefold() not in said]
    words = ". ".join(parts).split()
    return " ".join(words[:MAX_TEXT_WORDS])[:MAX_TEXT_CHARS].rstrip()


def daily_budgets(ads: Iterable[Ad]) -> dict[str, float | None]:
    """Every advertiser of `ads` with its daily budget in US dollars, None where no ad states one."""
    budgets: dict[str, float | None] = {}
    for ad in ads:
        if ad.daily_budget_usd is not None:
            budgets[ad.advertiser] = ad.daily_budget_usd
        else:
            budgets.setdefault(ad.advertiser, None)
    return budgets
