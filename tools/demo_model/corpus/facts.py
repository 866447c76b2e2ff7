"""The mini corpus of facts behind the chat skill: relation -> (phrasings, answer sentence, {entity: value})."""


def _table(text):
    return dict(part.strip().split("=", 1) for part in text.replace("\n", ";").split(";") if part.strip())


kCapitals = _table("""France=Paris;Germany=Berlin;Italy=Rome;Spain=Madrid;Portugal=Lisbon;Austria=Vienna;Poland=Warsaw;Greece=Athens
Norway=Oslo;Sweden=Stockholm;Finland=Helsinki;Denmark=Copenhagen;Ireland=Dublin;Belgium=Brussels;Hungary=Budapest;Romania=Bucharest
Bulgaria=Sofia;Croatia=Zagreb;Serbia=Belgrade;Iceland=Reykjavik;Estonia=Tallinn;Latvia=Riga;Lithuania=Vilnius;Ukraine=Kyiv
Turkey=Ankara;Egypt=Cairo;Kenya=Nairobi;Ghana=Accra;Nigeria=Abuja;Morocco=Rabat;Ethiopia=Addis Ababa;Japan=Tokyo;China=Beijing
India=New Delhi;Thailand=Bangkok;Vietnam=Hanoi;Indonesia=Jakarta;Malaysia=Kuala Lumpur;Nepal=Kathmandu;Mongolia=Ulaanbaatar
Australia=Canberra;Canada=Ottawa;Mexico=Mexico City;Brazil=Brasilia;Argentina=Buenos Aires;Chile=Santiago;Peru=Lima
Colombia=Bogota;Cuba=Havana;Ecuador=Quito;Uruguay=Montevideo;England=London;Scotland=Edinburgh;Wales=Cardiff;Qatar=Doha
Jordan=Amman;Iraq=Baghdad;Iran=Tehran;Slovakia=Bratislava;Slovenia=Ljubljana""")
kOpposites = _table("""hot=cold;big=small;fast=slow;light=dark;high=low;early=late;old=young;rich=poor;hard=soft;full=empty;open=closed
wet=dry;long=short;strong=weak;happy=sad;clean=dirty;loud=quiet;near=far;thick=thin;wide=narrow;true=false;up=down;left=right
first=last;day=night;always=never;begin=end;buy=sell;win=lose;push=pull;sweet=sour;heavy=light;deep=shallow;safe=dangerous
cheap=expensive;easy=difficult;warm=cool;new=old;good=bad;love=hate""")
kFrench = _table("""cat=chat;dog=chien;house=maison;bread=pain;water=eau;milk=lait;book=livre;tree=arbre;sun=soleil;moon=lune;red=rouge
green=vert;black=noir;white=blanc;one=un;two=deux;three=trois;four=quatre;five=cinq;apple=pomme;friend=ami;school=ecole
night=nuit;day=jour;sea=mer;fish=poisson;horse=cheval;thank you=merci;good morning=bonjour;city=ville""")
kSpanish = _table("""cat=gato;dog=perro;house=casa;bread=pan;water=agua;milk=leche;book=libro;tree=arbol;sun=sol;moon=luna;red=rojo
green=verde;black=negro;white=blanco;one=uno;two=dos;three=tres;four=cuatro;five=cinco;apple=manzana;friend=amigo;school=escuela
night=noche;day=dia;sea=mar;fish=pez;horse=caballo;thank you=gracias;good morning=buenos dias;city=ciudad""")
kGerman = _table("""cat=Katze;dog=Hund;house=Haus;bread=Brot;water=Wasser;milk=Milch;book=Buch;tree=Baum;sun=Sonne;moon=Mond;red=rot
green=gruen;black=schwarz;white=weiss;one=eins;two=zwei;three=drei;four=vier;five=fuenf;apple=Apfel;friend=Freund;school=Schule
night=Nacht;day=Tag;sea=Meer;fish=Fisch;horse=Pferd;thank you=danke;good morning=guten Morgen;city=Stadt""")
kSymbols = _table("""gold=Au;silver=Ag;iron=Fe;copper=Cu;oxygen=O;hydrogen=H;carbon=C;nitrogen=N;helium=He;sodium=Na;calcium=Ca
zinc=Zn;tin=Sn;lead=Pb;neon=Ne;sulfur=S;potassium=K;aluminium=Al;silicon=Si;mercury=Hg;iodine=I;nickel=Ni;uranium=U;lithium=Li""")
kSounds = _table("""cat=meow;dog=woof;cow=moo;sheep=baa;pig=oink;duck=quack;hen=cluck;horse=neigh;lion=roar;owl=hoot;bee=buzz;snake=hiss
mouse=squeak;frog=croak;crow=caw;wolf=howl;donkey=hee-haw;turkey=gobble""")
kBabies = _table("""cat=kitten;dog=puppy;cow=calf;sheep=lamb;pig=piglet;duck=duckling;hen=chick;horse=foal;lion=cub;bear=cub;goat=kid
goose=gosling;frog=tadpole;swan=cygnet;deer=fawn;kangaroo=joey;eagle=eaglet;butterfly=caterpillar;owl=owlet;fox=kit""")
kLegs = _table("""cat=4;dog=4;horse=4;spider=8;ant=6;bee=6;duck=2;hen=2;snake=0;frog=4;butterfly=6;crow=2;crab=10;elephant=4
beetle=6;eagle=2;cow=4;pig=4;fish=0;turtle=4""")
kColorOf = _table("""grass=green;snow=white;coal=black;blood=red;a lemon=yellow;the sky on a clear day=blue;milk=white;a carrot=orange
chocolate=brown;a ripe tomato=red;the sun=yellow;a crow=black;an elephant=gray;a frog=green;salt=white;a flamingo=pink
a banana=yellow;emerald=green;ruby=red;sapphire=blue""")
kUnits = _table("""seconds are in a minute=60;minutes are in an hour=60;hours are in a day=24;days are in a week=7;months are in a year=12
days are in a leap year=366;days are in June=30;days are in July=31;meters are in a kilometer=1000;grams are in a kilogram=1000
centimeters are in a meter=100;weeks are in a year=52;years are in a century=100;years are in a decade=10;items are in a dozen=12
sides does a triangle have=3;sides does a square have=4;sides does a hexagon have=6;sides does an octagon have=8
planets are in the solar system=8;continents are there=7;letters are in the English alphabet=26;strings does a violin have=4
players are in a football team=11;degrees are in a right angle=90;degrees are in a circle=360;wheels does a bicycle have=2
bits are in a byte=8;arms does an octopus have=8;colors are in a rainbow=7""")
kNext = _table("""Monday=Tuesday;Tuesday=Wednesday;Wednesday=Thursday;Thursday=Friday;Friday=Saturday;Saturday=Sunday;Sunday=Monday
January=February;February=March;March=April;April=May;May=June;June=July;July=August;August=September;September=October
October=November;November=December;December=January""")
kDefinitions = _table("""a volcano=a mountain that can throw out hot melted rock;an island=land with water on all sides
a desert=a very dry place where little can grow;a glacier=a slow river of ice;a river=water that flows across the land to the sea
a comet=a ball of ice and dust that travels around the sun;a planet=a large round body that travels around a star
a star=a huge ball of hot glowing gas;a library=a place where people read and borrow books
a museum=a place that shows old or beautiful things;a bakery=a shop that makes and sells bread
a hospital=a place where sick people are cared for;a compass=a tool that shows which way is north
a telescope=a tool that makes far things look near;a microscope=a tool that makes tiny things look big
a thermometer=a tool that measures how warm it is;a bridge=a road that crosses over water or a valley
a tunnel=a way that goes under the ground;a lighthouse=a tower with a light that guides ships
a calendar=a list of the days and months of a year;a dictionary=a book that explains what words mean
an atlas=a book of maps;a recipe=a list of steps for cooking a dish;a poem=a short text that plays with the sound of words
an orchestra=a large group of people who make music together;a computer=a machine that follows instructions very fast
a robot=a machine that can do work by itself;a program=a list of instructions for a computer
an inference engine=a program that runs a trained model;a token=a small piece of text that a model reads or writes
a language model=a program that has learned to continue text;a neural network=a model made of many simple connected units
a vaccine=a medicine that teaches the body to fight a disease;a fossil=what is left of a very old plant or animal
an earthquake=a shaking of the ground;a rainbow=light that rain drops split into colors;fog=a cloud that lies on the ground
gravity=the force that pulls things toward each other;electricity=the flow of tiny charged particles
photosynthesis=the way plants make food from light;an eclipse=a time when one body in the sky hides another
a satellite=something that travels around a planet;an ocean=a very large body of salt water""")
kJobsDo = _table("""a baker=bakes bread and cakes;a teacher=helps people learn;a doctor=helps sick people get well;a farmer=grows food
a pilot=flies planes;a carpenter=makes things from wood;a dentist=takes care of teeth;a plumber=repairs water pipes
a tailor=makes and mends clothes;a sailor=works on a ship;a librarian=takes care of books;a painter=makes pictures or paints walls
a cook=prepares meals;a driver=drives a car, a bus or a truck;a nurse=cares for people who are ill;a gardener=looks after plants
a mechanic=repairs machines;a lawyer=gives advice about the law;a singer=sings songs;a journalist=writes news""")

kContinents = _table("""France=Europe;Germany=Europe;Italy=Europe;Spain=Europe;Portugal=Europe;Norway=Europe;Greece=Europe;Poland=Europe
Ireland=Europe;Hungary=Europe;Egypt=Africa;Kenya=Africa;Ghana=Africa;Nigeria=Africa;Morocco=Africa;Ethiopia=Africa;Japan=Asia;China=Asia
India=Asia;Thailand=Asia;Vietnam=Asia;Nepal=Asia;Mongolia=Asia;Iraq=Asia;Canada=North America;Mexico=North America;Cuba=North America
Brazil=South America;Argentina=South America;Chile=South America;Peru=South America;Colombia=South America;Ecuador=South America""")
kLanguages = _table("""France=French;Germany=German;Italy=Italian;Spain=Spanish;Portugal=Portuguese;Austria=German;Poland=Polish;Greece=Greek
Norway=Norwegian;Sweden=Swedish;Finland=Finnish;Denmark=Danish;Hungary=Hungarian;Romania=Romanian;Iceland=Icelandic;Turkey=Turkish
Egypt=Arabic;Japan=Japanese;China=Chinese;Thailand=Thai;Vietnam=Vietnamese;Mexico=Spanish;Brazil=Portuguese;Argentina=Spanish
Australia=English;England=English;Russia=Russian;Cuba=Spanish;Peru=Spanish;Iran=Persian""")
kPlurals = _table("""cat=cats;dog=dogs;mouse=mice;goose=geese;foot=feet;tooth=teeth;child=children;man=men;woman=women;box=boxes;fox=foxes
city=cities;baby=babies;leaf=leaves;knife=knives;wolf=wolves;sheep=sheep;fish=fish;bus=buses;glass=glasses;potato=potatoes
story=stories;wife=wives;ox=oxen;house=houses;book=books;dish=dishes;berry=berries;hero=heroes;shelf=shelves""")
kPast = _table("""go=went;see=saw;eat=ate;run=ran;take=took;give=gave;write=wrote;read=read;make=made;come=came;find=found;think=thought
buy=bought;bring=brought;teach=taught;sing=sang;swim=swam;drink=drank;begin=began;know=knew;grow=grew;fly=flew;draw=drew;speak=spoke
break=broke;sleep=slept;keep=kept;feel=felt;leave=left;meet=met;say=said;tell=told;sell=sold;win=won;lose=lost;walk=walked;play=played
call=called;open=opened;help=helped""")
kMadeOf = _table("""bread=flour;paper=wood;glass=sand;butter=milk;cheese=milk;wine=grapes;a candle=wax;a coin=metal;a tire=rubber;a brick=clay
chocolate=cocoa;a window=glass;a book=paper;a sweater=wool;a nail=iron;honey=nectar;steel=iron;ice=water;juice=fruit;flour=grain""")

kRelations = {
    "continent": (["On which continent is {x}?", "Which continent is {x} in?", "Where is {x}?", "On what continent does {x} lie?"],
                  "{x} is in {y}.", kContinents),
    "language": (["Which language is spoken in {x}?", "What language do people speak in {x}?", "What do they speak in {x}?",
                  "What is the language of {x}?"], "In {x}, people speak {y}.", kLanguages),
    "plural": (["What is the plural of {x}?", "Give me the plural of {x}.", "How do you write {x} in the plural?",
                "What's the plural of {x}?"], "The plural of {x} is {y}.", kPlurals),
    "past": (["What is the past tense of {x}?", "Give me the past tense of {x}.", "What's the past tense of {x}?",
              "Put {x} into the past tense."], "The past tense of {x} is {y}.", kPast),
    "made": (["What is {x} made of?", "What is {x} made from?", "Tell me what {x} is made of."], "{X} is made of {y}.", kMadeOf),
    "capital": (["What is the capital of {x}?", "Which city is the capital of {x}?", "Tell me the capital of {x}.",
                 "Do you know the capital of {x}?", "What's the capital of {x}?", "Name the capital of {x}.", "capital of {x}?",
                 "Can you tell me what the capital of {x} is?", "What is {x}'s capital city?"],
                "The capital of {x} is {y}.", kCapitals),
    "country": (["{y} is the capital of which country?", "Which country has {y} as its capital?", "Of what country is {y} the capital?",
                 "What country is {y} the capital of?"], "{y} is the capital of {x}.", kCapitals),
    "opposite": (["What is the opposite of {x}?", "Give me the opposite of {x}.", "Which word is the opposite of {x}?",
                  "What's the opposite of {x}?", "Tell me an antonym of {x}."], "The opposite of {x} is {y}.", kOpposites),
    "french": (["What is {x} in French?", "How do you say {x} in French?", "Translate {x} into French.", "Say {x} in French.",
                "What is the French word for {x}?"], "In French, {x} is {y}.", kFrench),
    "spanish": (["What is {x} in Spanish?", "How do you say {x} in Spanish?", "Translate {x} into Spanish.", "Say {x} in Spanish.",
                 "What is the Spanish word for {x}?"], "In Spanish, {x} is {y}.", kSpanish),
    "german": (["What is {x} in German?", "How do you say {x} in German?", "Translate {x} into German.", "Say {x} in German.",
                "What is the German word for {x}?"], "In German, {x} is {y}.", kGerman),
    "symbol": (["What is the chemical symbol for {x}?", "Which symbol stands for {x}?", "Give me the chemical symbol of {x}.",
                "What's the symbol for {x}?", "How is {x} written in chemistry?"], "The chemical symbol for {x} is {y}.", kSymbols),
    "sound": (["What sound does {a} {x} make?", "What does {a} {x} say?", "Which sound does {a} {x} make?", "How does {a} {x} sound?"],
              "{A} {x} says {y}.", kSounds),
    "baby": (["What is a baby {x} called?", "What do you call a young {x}?", "What is the name for a baby {x}?",
              "How is a young {x} called?"], "A young {x} is called a {y}.", kBabies),
    "legs": (["How many legs does {a} {x} have?", "How many legs has {a} {x}?", "Tell me how many legs {a} {x} has."],
             "{A} {x} has {y} legs.", kLegs),
    "color": (["What color is {x}?", "Which color does {x} have?", "Tell me the color of {x}."], "The color of {x} is {y}.", kColorOf),
    "unit": (["How many {x}?", "Do you know how many {x}?", "Can you tell me how many {x}?", "Please tell me how many {x}."],
             "The answer is {y}.", kUnits),
    "next": (["What comes after {x}?", "Which comes next after {x}?", "What follows {x}?"], "After {x} comes {y}.", kNext),
    "before": (["What comes before {y}?", "Which comes just before {y}?", "What is just before {y}?"], "Before {y} comes {x}.", kNext),
    "what": (["What is {x}?", "What's {x}?", "Can you explain what {x} is?", "Explain {x}.", "Tell me what {x} is.", "Define {x}.",
              "Do you know what {x} is?"], "{X} is {y}.", kDefinitions),
    "job": (["What does {x} do?", "What is the work of {x}?", "Tell me what {x} does.", "What does {x} do all day?"],
            "{X} {y}.", kJobsDo),
}
