"""Languages that Whisper knows, by code and by English name."""

from __future__ import annotations

_NAMES = """
en=english zh=chinese de=german es=spanish ru=russian ko=korean fr=french ja=japanese pt=portuguese tr=turkish
pl=polish ca=catalan nl=dutch ar=arabic sv=swedish it=italian id=indonesian hi=hindi fi=finnish vi=vietnamese
he=hebrew uk=ukrainian el=greek ms=malay cs=czech ro=romanian da=danish hu=hungarian ta=tamil no=norwegian
th=thai ur=urdu hr=croatian bg=bulgarian lt=lithuanian la=latin mi=maori ml=malayalam cy=welsh sk=slovak
te=telugu fa=persian lv=latvian bn=bengali sr=serbian az=azerbaijani sl=slovenian kn=kannada et=estonian
mk=macedonian br=breton eu=basque is=icelandic hy=armenian ne=nepali mn=mongolian bs=bosnian kk=kazakh
sq=albanian sw=swahili gl=galician mr=marathi pa=punjabi si=sinhala km=khmer sn=shona yo=yoruba so=somali
af=afrikaans oc=occitan ka=georgian be=belarusian tg=tajik sd=sindhi gu=gujarati am=amharic yi=yiddish lo=lao
uz=uzbek fo=faroese ht=haitian_creole ps=pashto tk=turkmen nn=nynorsk mt=maltese sa=sanskrit lb=luxembourgish
my=myanmar bo=tibetan tl=tagalog mg=malagasy as=assamese tt=tatar haw=hawaiian ln=lingala ha=hausa ba=bashkir
jw=javanese su=sundanese yue=cantonese
"""
_ALIASES = """
my=burmese ca=valencian nl=flemish ht=haitian lb=letzeburgesch ps=pushto pa=panjabi ro=moldavian ro=moldovan
si=sinhalese es=castilian zh=mandarin jw=jv
"""
# Languages that put no spaces between words.
WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(code, name.replace("_", " ")) for code, _, name in (each.partition("=") for each in text.split())]


NAMES = dict(_pairs(_NAMES))  # code -> English name
_CODES = {name: code for code, name in [*_pairs(_ALIASES), *_pairs(_NAMES)]}


def language_code(name: str) -> str:
    """A code or an English name, of any case, with or without a region ("en-US") -> the code; unknown ones as given."""
    lower = name.strip().lower().replace("_", "-")
    if lower.partition("-")[0] in NAMES:
        return lower.partition("-")[0]
    return _CODES.get(lower, lower)


def language_name(code: str) -> str:
    return NAMES.get(code, code)
