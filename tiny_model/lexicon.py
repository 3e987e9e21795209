"""The words that conversations are made of."""

from __future__ import annotations

NOUNS = tuple(
    """apple anchor arrow bag ball banana barn basket bead bean bear bed bell belt bench berry bike bird boat bone
    book boot bottle bowl box branch bread brick bridge broom brush bucket bus button cabin cake camel camera candle
    canoe card carpet carrot castle cat chair chalk cheese cherry chest circle clock cloud coat coin comb cook copper
    corn cotton cow crab crown cup curtain daisy deck deer desk dish dog doll door dragon drawer drum duck eagle ear
    egg engine fan farm feather fence fern field fig finger fire fish flag flame flower flute fork fox frame frog
    garden gate ghost giraffe glass glove goat gold goose grape grass guitar hammer hand harbor hat hawk heart hill
    honey horse house iron island ivory jacket jar jewel jungle kettle key kite knife ladder lake lamp leaf lemon
    letter lion lizard lock magnet mango map maple marble market mask meadow melon mirror moon mountain mouse mug
    nail needle nest nickel night nut oak ocean olive onion orange otter oven owl paint pan panda paper parrot peach
    pear pebble pen pencil pepper piano pillow pilot pipe planet plate plum pocket pond potato pumpkin puzzle rabbit
    radio rain raven ribbon rice ring river robot rock roof rope rose ruler sail salmon salt sand saw school scarf
    sea seed shadow sheep shelf shell ship shirt shoe silver sink skirt sled snail snow soap sock sofa soup spider
    spoon spring square stamp star stone storm straw street sugar summer sun swan table tail tape tea tent thread
    tiger timber toast tomato tooth torch towel tower train tray tree truck trumpet tulip turtle vase velvet violin
    wagon wall walnut water wheel whistle willow window winter wolf wood wool yarn zebra""".split()
)

NAMES = tuple(
    """Ada Ali Amy Ana Ben Bo Carl Cleo Dan Dina Ed Ella Emil Eva Finn Gia Hana Hugo Ida Ines Ivan Jan Jon Kai Kim Lea
    Leo Lia Lou Luis Maya Max Mia Nia Nils Noa Nora Olga Omar Otto Pia Rosa Ruth Sam Sara Sia Tim Tom Uma Vera Will
    Yara Yuki Zoe""".split()
)

CITIES = tuple(
    """Athens Bergen Berlin Bern Boston Cairo Chicago Cork Dakar Delhi Denver Dublin Geneva Genoa Ghent Hanoi Houston
    Kyoto Lagos Leeds Lima Lisbon London Lyon Madrid Malmo Manila Miami Milan Munich Nairobi Naples Nice Oslo Oxford
    Paris Porto Prague Quito Riga Rome Seattle Seoul Seville Sofia Split Sydney Tallinn Tampa Tokyo Toronto Turin
    Venice Vienna Warsaw York Zurich""".split()
)

CUISINES = tuple(
    """Chinese Cuban Dutch French Greek Indian Italian Japanese Korean Lebanese Mexican Moroccan Persian Polish
    Spanish Swedish Thai Turkish Vietnamese""".split()
)

DISHES = (
    "curry",
    "dumplings",
    "noodles",
    "paella",
    "pasta",
    "pho",
    "pizza",
    "ramen",
    "salad",
    "soup",
    "sushi",
    "tacos",
)

PLACES = tuple(
    f"{first} {second}"
    for first in ("Blue", "Golden", "Green", "Little", "Old", "Red", "Royal", "Silver", "Sunny", "White")
    for second in ("Anchor", "Bowl", "Fig", "Fork", "Garden", "Lantern", "Olive", "Oven", "Spoon", "Table")
)

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer briefly.",
    "Be brief.",
    "Be exact and polite.",
    "You help with numbers, lists and words.",
    "Answer with the result only.",
    "You are a patient teacher.",
    "Think first, then answer.",
    "You are an assistant that can call functions.",
    "Keep answers short.",
)
