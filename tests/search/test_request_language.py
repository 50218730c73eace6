"""Which language a request is in: English where nothing says otherwise, other scripts, languages in Latin letters."""

from __future__ import annotations

import time

import pytest

from toolscout.models.encoders.onnx_encoder import Encoder
from toolscout.search.request_language import ANY_LANGUAGE, knows, languages_of

# Short requests, commands, code, names, talk, foreign words in English sentences: the need head is asked about all.
ENGLISH = r"""
ping example.com
resize photo.jpg to 200px
thanks!
ok cool
ok
lol
hi
hey there
git push
ls -la
docker ps
npm install react
kubectl get pods -n default
SELECT * FROM users
weather Zürich
weather in são paulo
flights from Malmö to Gdańsk
call Björn Müller
email José about the café opening
play Despacito
play La Vie en Rose
translate 'guten Morgen' to English
how do you say "où est la gare" in German?
what does Schadenfreude mean
what does 你好 mean?
what is the meaning of carpe diem
tell Françoise I'm late
order 2 pizzas margherita
book a table at La Trattoria da Mario
send $50 to Juan Carlos
BTC price
AAPL
usd to eur
tl;dr
wtf
brb
merge PR 42
open main.py
rm foo.txt
convert mp4 to mp3
add milk to my list
alarm 6am
timer 5 min
what's up
who are you
no
yes
stop
cancel
lights off
navigate to Piazza San Marco
find restaurants in Montréal
schedule with Håkon Østergård
wikipedia Søren Kierkegaard
hola amigo app reviews
IKEA Poäng price
Nescafé coupon
résumé template
naïve bayes
show me San Francisco hotels
los angeles weather
las vegas flights
El Niño forecast
track UPS 1Z999AA10123456784
reset password
spotify
netflix
youtube
google maps
create issue
list_issues
getWeather
jira ticket ABC-123
post to #general
tweet this
uber to JFK
Lufthansa LH902 status
imdb amelie
recipe for crème brûlée
bonjour, how are you today?
gracias!
danke
ciao
asdf
qwerty
zzzz qqqq xxxx
hello there
def foo(x): return x+1
print("hello world")
for i in range(10): print(i)
public static void main(String[] args)
const x = await fetch(url)
<div class="a">b</div>
sudo apt-get install vim
pip install numpy
curl -X POST http://localhost:8080/api
regex for email
cat dog mouse
sum 3 4 5
mute
next song
volume up
dim lights
order status
invoice 123
john
maria
Berlin
Paris
Tokyo time
solve 3x+2=5
haiku
joke pls
thx
ty
u there?
plz help
gimme a pic
idk
sry
me too
do it
die
in
no more
a la carte menu
set an alarm
list files
show logs
restart nginx
deploy to prod
scale deployment web to 3
compress images
rotate logs
mount usb
list usb devices
encrypt a file
generate a uuid
base64 decode
unzip archive.zip
extract audio from video.mkv
pdf to docx
ocr scan.png
grep error in app.log
""".strip().splitlines()
# Everyday requests and talk.
OTHERS = {
    "de": (
        "Wie wird das Wetter morgen in Berlin?",
        "Guten Morgen",
        "Schreibe ein Gedicht über den Herbst",
        "Erzähl mir einen Witz",
        "Schick Anna eine Mail, dass ich später komme",
        "Wie spät ist es?",
        "Lösche die Datei",
        "Zeige alle Dateien",
        "Was ist der Unterschied zwischen Wein und Bier?",
        "Buche einen Flug nach Rom",
        "Licht aus im Wohnzimmer",
        "Wer hat gestern gewonnen?",
        "Stelle den Wecker auf sechs Uhr",
    ),
    "fr": (
        "Quel temps fera-t-il demain à Paris ?",
        "Écris un poème sur l'automne",
        "Raconte-moi une blague",
        "Envoie un mail à Anne",
        "Quelle heure est-il ?",
        "Supprime le fichier",
        "Affiche tous les fichiers",
        "Réserve un vol pour Rome",
        "Vire 50 euros à Pierre",
        "Éteins la lumière du salon",
        "Qui a gagné hier ?",
        "Mets le réveil à six heures",
    ),
    "es": (
        "¿Qué tiempo hará mañana en Madrid?",
        "Buenos días",
        "Escribe un poema sobre el otoño",
        "Cuéntame un chiste",
        "¿Qué hora es?",
        "Borra el archivo",
        "Muestra todos los archivos",
        "Reserva un vuelo a Roma",
        "Apaga la luz del salón",
        "¿Quién ganó ayer?",
        "Pon el despertador a las seis",
    ),
    "it": (
        "Che tempo farà domani a Roma?",
        "Scrivi una poesia sull'autunno",
        "Raccontami una barzelletta",
        "Manda una mail ad Anna",
        "Elimina il file",
        "Mostra tutti i file",
        "Prenota un volo per Parigi",
        "Spegni la luce in salotto",
        "Chi ha vinto ieri?",
        "Metti la sveglia alle sei",
    ),
    "pt": (
        "Como vai estar o tempo amanhã em Lisboa?",
        "Muito obrigado",
        "Bom dia",
        "Escreve um poema sobre o outono",
        "Conte uma piada",
        "Envie um e-mail para a Ana",
        "Que horas são?",
        "Apague o arquivo",
        "Mostre todos os arquivos",
        "Reserve um voo para Roma",
        "Apague a luz da sala",
        "Quem ganhou ontem?",
    ),
    "nl": (
        "Wat voor weer wordt het morgen in Amsterdam?",
        "Schrijf een gedicht over de herfst",
        "Vertel me een grap",
        "Stuur een mail naar Anna",
        "Hoe laat is het?",
        "Verwijder het bestand",
        "Toon alle bestanden",
        "Boek een vlucht naar Rome",
        "Doe het licht uit",
    ),
    "sv": (
        "Hur blir vädret imorgon i Stockholm?",
        "Tack så mycket",
        "God morgon",
        "Skriv en dikt om hösten",
        "Berätta ett skämt",
        "Skicka ett mejl till Anna",
        "Vad är klockan?",
        "Ta bort filen",
        "Visa alla filer",
        "Boka ett flyg till Rom",
    ),
    "da": (
        "Hvordan bliver vejret i morgen i København?",
        "Skriv et digt om efteråret",
        "Fortæl mig en vittighed",
        "Hvad er klokken?",
        "Vis alle filer",
    ),
    "no": (
        "Hvordan blir været i morgen i Oslo?",
        "Skriv et dikt om høsten",
        "Fortell meg en vits",
        "Send en e-post til Anna",
        "Hva er klokka?",
        "Vis alle filer",
    ),
    "fi": (
        "Millainen sää on huomenna Helsingissä?",
        "Kiitos paljon",
        "Lähetä sähköposti Annalle",
        "Poista tiedosto",
        "Näytä kaikki tiedostot",
    ),
    "pl": (
        "Jaka będzie jutro pogoda w Warszawie?",
        "Dziękuję bardzo",
        "Napisz wiersz o jesieni",
        "Opowiedz mi dowcip",
        "Która jest godzina?",
        "Usuń plik",
        "Pokaż wszystkie pliki",
    ),
    "cs": (
        "Jaké bude zítra počasí v Praze?",
        "Napiš báseň o podzimu",
        "Řekni mi vtip",
        "Kolik je hodin?",
        "Smaž soubor",
        "Ukaž všechny soubory",
    ),
    "hu": (
        "Milyen idő lesz holnap Budapesten?",
        "Írj egy verset az őszről",
        "Küldj egy e-mailt Annának",
        "Hány óra van?",
    ),
    "ro": (
        "Cum va fi vremea mâine la București?",
        "Mulțumesc mult",
        "Scrie o poezie despre toamnă",
        "Spune-mi o glumă",
        "Cât e ceasul?",
        "Șterge fișierul",
    ),
    "tr": (
        "Yarın İstanbul'da hava nasıl olacak?",
        "Sonbahar hakkında bir şiir yaz",
        "Bana bir fıkra anlat",
        "Anna'ya e-posta gönder",
        "Dosyayı sil",
        "Tüm dosyaları göster",
    ),
    "id": (
        "Bagaimana cuaca besok di Jakarta?",
        "Terima kasih",
        "Tulis puisi tentang musim gugur",
        "Jam berapa sekarang?",
        "Hapus berkas itu",
    ),
    "vi": (
        "Thời tiết ngày mai ở Hà Nội thế nào?",
        "Cảm ơn bạn",
        "Viết một bài thơ về mùa thu",
        "Kể cho tôi một câu chuyện cười",
        "Gửi email cho Anna",
        "Mấy giờ rồi?",
    ),
    "ca": (
        "Quin temps farà demà a Barcelona?",
        "Escriu un poema sobre la tardor",
        "Envia un correu a l'Anna",
        "Quina hora és?",
    ),
    "hr": (
        "Kakvo će vrijeme biti sutra u Zagrebu?",
        "Napiši pjesmu o jeseni",
        "Koliko je sati?",
    ),
    "sw": (
        "Hali ya hewa itakuwaje kesho Nairobi?",
        "Asante sana",
        "Andika shairi kuhusu mvua",
    ),
    "tl": (
        "Ano ang panahon bukas sa Maynila?",
        "Sumulat ng tula tungkol sa ulan",
    ),
    "af": (
        "Hoe gaan die weer môre in Kaapstad wees?",
        "Baie dankie",
        "Skryf 'n gedig oor die herfs",
    ),
    "ko": (
        "내일 서울 날씨 어때?",
        "고마워",
    ),
    "ja": (
        "明日の東京の天気は?",
        "ありがとう",
    ),
    "zh": (
        "明天北京天气怎么样",
        "谢谢",
    ),
    "ru": (
        "Какая завтра погода в Москве?",
        "Спасибо",
        "Расскажи анекдот",
    ),
    "ar": (
        "كيف سيكون الطقس غدا؟",
        "شكرا",
    ),
    "hi": (
        "कल दिल्ली में मौसम कैसा रहेगा?",
        "धन्यवाद",
    ),
    "th": ("พรุ่งนี้อากาศเป็นอย่างไร",),
    "el": ("Τι καιρό θα κάνει αύριο;",),
    "he": ("מה מזג האוויר מחר?",),
}
SHORT = (
    "Danke!",
    "Überweise 50 Euro an Peter",
    "Merci beaucoup",
    "Bonjour",
    "Muchas gracias",
    "Envía un correo a Ana",
    "Transfiere 50 euros a Pedro",
    "Grazie mille",
    "Buongiorno",
    "Che ore sono?",
    "Bedankt",
    "Goedemorgen",
    "Släck lampan i vardagsrummet",
    "Mange tak",
    "Send en mail til Anna",
    "Slet filen",
    "Tusen takk",
    "Slett filen",
    "Kirjoita runo syksystä",
    "Kerro vitsi",
    "Paljonko kello on?",
    "Wyślij maila do Anny",
    "Děkuji",
    "Pošli mail Anně",
    "Köszönöm szépen",
    "Mesélj egy viccet",
    "Töröld a fájlt",
    "Trimite un mail Anei",
    "Teşekkürler",
    "Saat kaç?",
    "Ceritakan lelucon",
    "Kirim email ke Anna",
    "Moltes gràcies",
    "Explica'm un acudit",
    "Hvala puno",
    "Ispričaj mi vic",
    "Pošalji mail Ani",
    "Niambie utani",
    "Maraming salamat",
)


@pytest.mark.parametrize("text", ENGLISH)
def test_english_stays_english(text: str) -> None:
    assert knows(("en",), text)


@pytest.mark.parametrize("language", OTHERS)
def test_other_languages_are_not_english(language: str) -> None:
    for text in OTHERS[language]:
        assert not knows(("en",), text), text
        assert knows((ANY_LANGUAGE,), text)


def test_most_are_told_apart_from_each_other() -> None:
    told = [language in languages_of(text) for language, texts in OTHERS.items() for text in texts]
    assert sum(told) >= 0.85 * len(told)


@pytest.mark.parametrize("text", SHORT)
def test_what_is_too_short_to_tell_counts_as_english(text: str) -> None:
    assert languages_of(text) == {"en"}


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("내일 날씨", {"ko"}),
        ("明日の天気", {"ja"}),
        ("ﾃﾝｷ", {"ja"}),
        ("天気", {"zh", "ja"}),
        ("погода", {"ru", "uk", "bg", "sr", "mk", "be", "kk", "ky", "tg", "mn"}),
        ("καιρός", {"el"}),
        ("ሰላም", {"am", "ti"}),
        ("ccache 형식 티켓을 kirbi 형식으로 변환", {"ko"}),
        ("12 + 30 = ?", set()),
        ("🙂🙂", set()),
        ("ᏣᎳᎩ", set()),
    ],
)
def test_scripts(text: str, languages: set[str]) -> None:
    assert languages_of(text) == languages


def test_what_has_no_letters_is_known_and_a_script_that_is_not_listed_is_not() -> None:
    assert knows(("en",), "12 + 30 = ?")
    assert knows(("en",), "🙂")
    assert not knows(("en",), "ᏣᎳᎩ")


def test_heads_may_know_several_languages() -> None:
    assert knows(("en", "de"), "Wie wird das Wetter morgen in Berlin?")
    assert knows(("zh",), "明天北京天气怎么样")
    assert not knows(("en", "fr"), "Wie wird das Wetter morgen in Berlin?")
    assert knows(("sr",), "Kakvo će vrijeme biti sutra u Zagrebu?")


def test_quoted_text_counts_only_where_there_is_little_else() -> None:
    assert knows(("en",), "translate 'wo ist der nächste Bahnhof, bitte' please")
    assert knows(("en",), "reply to her: «merci beaucoup, je suis très content»")
    assert not knows(("en",), "«merci beaucoup, je suis très content»")
    assert not knows(("en",), "übersetze „good morning“ und 'how are you' ins Deutsche")


def test_a_request_that_begins_in_english_is_english() -> None:
    spanish = "Federico González, un consultor que trabajó para el ministro, no quiso decir nada a los periodistas"
    assert knows(("en",), f"Please translate this into English for me: {spanish}")
    assert not knows(("en",), spanish)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\u200d",
        "\u0301" * 50,
        "a" * 100_000,
        "'" * 100_000,
        '"a' * 50_000,
        "😀" * 100_000,
        "\ud800x",
        "你" * 100_000,
    ],
)
def test_odd_texts_are_no_trouble(text: str) -> None:
    languages_of(text)
    knows(("en",), text)


@pytest.mark.timing
def test_it_takes_no_time_beside_the_encoder() -> None:
    encoder = Encoder.load(threads=1)
    texts = [*ENGLISH, *(text for texts in OTHERS.values() for text in texts), "word " * 20_000, "你好" * 50_000]
    guessed, encoded = [], []
    for text in texts:  # in turn, so that other programs slow down both
        start = time.perf_counter()
        knows(("en",), text)
        half = time.perf_counter()
        encoder.encode_request(text)
        guessed.append(half - start)
        encoded.append(time.perf_counter() - half)
    usual = sorted(encoded)[len(texts) // 2]
    assert sorted(guessed)[len(texts) // 2] < usual / 5
    assert sorted(guessed)[len(texts) * 19 // 20] < usual
