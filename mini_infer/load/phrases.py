"""The words that prompts are made of."""

from __future__ import annotations

TASKS = (
    "Explain {topic} to a colleague who starts on Monday{how}.",
    "What should I check first when {topic} goes wrong{how}?",
    "Write a short note to the team about {topic}{how}.",
    "Give me three questions a beginner would ask about {topic}, with answers{how}.",
    "I have ten minutes to talk about {topic}. Draft what I could say{how}.",
    "Compare two common ways of dealing with {topic}{how}.",
    "List the steps for {topic} in the order you would take them{how}.",
    "My neighbour says {topic} is a waste of time. How would you answer{how}?",
    "Summarise what matters about {topic}{how}.",
    "Which mistakes do people make with {topic}, and how can I avoid them{how}?",
    "Turn my thoughts on {topic} into a plan for the week{how}.",
    "Tell a short story in which {topic} plays a part{how}.",
    "What has changed about {topic} in the last twenty years{how}?",
    "How do I know that I am getting better at {topic}{how}?",
)

TOPICS = (
    "sorting a long list",
    "growing tomatoes on a balcony",
    "planning a night train journey",
    "reading a weather map",
    "naming variables",
    "baking bread with little yeast",
    "keeping a diary",
    "repairing a bicycle tyre",
    "writing a unit test",
    "choosing a pair of walking boots",
    "learning to swim late in life",
    "moving a piano up the stairs",
    "backing up family photographs",
    "reviewing somebody else's code",
    "preparing for a job interview",
    "watering plants during a holiday",
    "drawing a map by hand",
    "rebasing a branch",
    "cooking for twelve guests",
    "tuning a guitar by ear",
    "measuring the height of a tree",
    "organising a street party",
    "profiling a slow program",
    "translating a poem",
    "teaching a dog to wait",
    "saving electricity in the kitchen",
    "writing a letter of complaint",
    "recovering a lost password",
    "crossing a river on foot",
    "opening a small library",
)

MANNERS = (
    "",
    ", in two sentences",
    ", without technical words",
    ", as a numbered list",
    ", with one example",
    ", for somebody in a hurry",
    ", in a friendly tone",
    ", and say what you are unsure about",
    ", for a reader of twelve years",
    ", in at most sixty words",
)

FOLLOW_UPS = (
    "Can you give an example?",
    "Why is that so?",
    "Please make it shorter.",
    "What would you do in my place?",
    "And what if it rains?",
    "Which of these comes first?",
    "Say it again in other words.",
    "What does it cost?",
    "Is there another way?",
    "How long will that take?",
)

WORDS = tuple(
    """able about above after again air all along also animal another answer any around ask away back ball bank basket
    become before begin behind below best better between big bird black blue boat body book both bottle box bread
    bridge bright bring brother brown build bus busy call carry cat chair change child city clean clear climb close
    cloud coat cold come cook copper corner could count country cover cross cup cut dance dark day deep desk dinner dog
    door down draw dream dress drive drop dry each early earth east easy eat egg eight end even evening every eye face
    fall family far farm fast father field fight fill find fire first fish five floor flower fly follow food foot
    forest four free fresh friend from front fruit full garden give glass go gold good grass great green ground group
    grow half hand happy hard hat have hear heart heavy help high hill history hold home horse hot hour house how
    hundred ice idea inside iron island jacket join journey jump just keep key kind king kitchen know lake lamp land
    large last late laugh leaf learn left letter light line listen little long look lose low machine make many map
    market matter meet metal middle milk mind minute money moon more morning mother mountain mouth move music name near
    neck need never new next night nine noise north number ocean often oil old only open orange order other outside
    over page paint paper park part pass past people pick picture place plain plant plate play point pond poor press
    pull push put question quick quiet rain read ready red rest rice rich ride right ring river road rock roof room
    round run salt same sand save say school sea season second see seed sell send seven shade shape sharp sheep ship
    shoe shop short show side silver simple sing sister sit six size skin sky sleep slow small smile smoke snow soft
    soil some song soon sound south speak spring square stand star start stay steel step still stone stop store story
    street strong summer sun sure swim table take talk tall taste teach tell ten test thank thick thin thing think
    third thousand three through time tiny today together tomorrow top touch tower town track train travel tree true
    turn twelve two under until valley village visit voice wait walk wall want warm wash watch water wave way weather
    week well west wheel where white wide wild wind window wing winter wish with wonder wood word work world write
    yard year yellow young""".split()
)
