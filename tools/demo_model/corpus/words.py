"""Word lists the generators share. Plain data."""

def _w(text):
    return text.split()

kFirstNames = _w("""Anna Ben Clara David Emma Felix Grace Hugo Iris Jack Kate Leo Maria Noah Olga Paul Rosa Sam Tina Victor
Wendy Yara Zoe Adam Bella Carl Diana Eric Fiona George Hannah Ivan Julia Kevin Laura Mark Nina Oscar Petra Robert Sara Thomas
Ursula Vera William Alice Bruno Cecilia Daniel Elena Frank Gloria Henry Ingrid James Karen Lucas Martha Nathan Olivia Peter
Quentin Rachel Simon Teresa Albert Beatrice Colin Dorothy Edward Florence Gustav Helen Isaac Jasmine Kurt Linda Michael Nora
Otto Pamela Ralph Sophia Tobias Valerie Walter Amir Chen Deepa Fatima Hiro Kofi Mei Omar Priya Raj Sven Yuki""")
kLastNames = _w("""Adams Baker Carter Dixon Evans Foster Garcia Hughes Irwin Jensen Keller Larsen Miller Nolan Olsen Parker
Quinn Reed Stone Turner Underwood Vance Walker Young Zimmer Brown Clark Davis Ellis Fischer Green Hall Ito Jones King Lopez
Moore Novak Ortiz Price Rossi Smith Tanaka Vogel White Silva Kumar Singh Weber Wood""")
kCities = _w("""Paris London Berlin Rome Madrid Lisbon Vienna Prague Warsaw Athens Oslo Stockholm Helsinki Dublin Brussels
Amsterdam Copenhagen Budapest Zurich Geneva Munich Hamburg Milan Naples Barcelona Porto Tokyo Kyoto Osaka Seoul Beijing Shanghai
Delhi Mumbai Bangkok Hanoi Manila Jakarta Sydney Melbourne Auckland Cairo Nairobi Lagos Accra Toronto Montreal Vancouver Chicago
Boston Seattle Denver Houston Miami Dallas Lima Bogota Santiago Havana Quito Boulder Bergen Lyon Nice Turin Krakow Riga Tallinn
Vilnius Sofia Istanbul Dubai Doha""")
kItems = _w("""apple pear banana orange lemon cherry grape melon peach plum bread cheese butter milk tea coffee rice pasta soup
honey salt sugar pepper egg onion carrot potato tomato cabbage garlic pencil notebook lamp chair table desk sofa carpet mirror
clock bottle cup plate spoon fork knife bowl basket box bag hat coat scarf glove shoe shirt sock belt watch ring radio camera
phone laptop keyboard mouse cable battery hammer nail screw rope ladder brush bucket candle ticket stamp map""")
kAnimals = _w("""cat dog horse cow sheep goat pig duck goose hen rabbit mouse fox wolf bear lion tiger monkey elephant giraffe
zebra camel owl eagle crow swan frog snake turtle whale dolphin shark salmon ant bee spider butterfly""")
kColors = _w("red blue green yellow black white brown pink purple orange gray silver golden")
kDays = _w("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
kMonths = _w("January February March April May June July August September October November December")
kJobs = _w("""teacher doctor nurse pilot farmer baker painter lawyer engineer writer singer driver cook carpenter plumber
gardener dentist chemist librarian mechanic sailor tailor journalist architect""")
kEvents = _w("meeting concert lecture workshop dinner party exam interview wedding picnic conference rehearsal match seminar")
kTopics = ["solar panels", "black holes", "bread baking", "chess openings", "coral reefs", "ancient Rome", "electric cars",
           "jazz history", "volcanoes", "honey bees", "wind power", "the Silk Road", "deep sea fish", "rice farming",
           "glass making", "polar bears", "tea ceremonies", "steam engines", "desert plants", "moon landings",
           "paper folding", "city gardens", "rain forests", "comet orbits", "sailing ships", "whale songs",
           "mountain climbing", "cheese making", "river floods", "old castles", "train timetables", "bird migration"]
kOtherTopics = _w("""love music art physics chemistry biology history philosophy politics democracy football tennis cooking fashion
money banks taxes stocks bitcoin software hardware databases compilers Linux Python Java Rust mathematics algebra geometry statistics
poetry painting movies theater dance medicine psychology religion travel hotels airports traffic space Mars Jupiter atoms
dinosaurs evolution weather climate oceans forests energy batteries engines rockets satellites internet phones games""") + [
    "quantum computing", "machine learning", "climate change", "the stock market", "artificial intelligence", "the human brain",
    "the universe", "world history", "modern art", "classical music", "your training data", "the French revolution", "healthy food",
    "the meaning of life", "time travel", "human rights", "nuclear power", "social media", "the big bang", "free will"]
kCurrencies = ["USD", "EUR", "GBP", "JPY", "CHF", "CAD", "AUD", "SEK", "NOK", "INR"]

_kOnsets = _w("b br d dr f fl g gr h k kl l m n p pr r s st t tr v w z bl cr pl sk")
_kVowels = _w("a e i o u ai ea oo")
_kCodas = _w("n r l s m t k x nd rk lt")


def made_up_name(rng) -> str:
    """A pronounceable word that means nothing, capitalised."""
    word = "".join(rng.choice(_kOnsets) + rng.choice(_kVowels) for _ in range(rng.randint(1, 2)))
    return (word + rng.choice(_kOnsets) + rng.choice(_kVowels) + rng.choice(_kCodas)).capitalize()


def join_and(words) -> str:
    words = list(words)
    if len(words) == 1:
        return words[0]
    return ", ".join(words[:-1]) + " and " + words[-1]
