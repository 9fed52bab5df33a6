// Package password says which passwords are good enough: long, not among those that everybody tries first, and not the user's own name.
// There are no rules of composition, as NIST SP 800-63B and OWASP ASVS 5 (6.2) ask. It is pure.
package password

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"berth.dev/berth/internal/fault"
)

const (
	// Shortest and Longest bound the length, in characters and in bytes.
	Shortest = 8
	Longest  = 1024
	// shortestName is the length from which on a name must not be in a password.
	shortestName = 4
	// mostAdded is how many characters around a common word make no other password of it.
	mostAdded = 4
)

// Check refuses a password that is too short or too long, common, or holds one of names: the email, the user name, the full name.
func Check(password string, names ...string) error {
	if n := utf8.RuneCountInString(password); n < Shortest || len(password) > Longest {
		return fault.Invalidf("the password is too short or too long").WithNext("use at least %d characters", Shortest)
	}
	lower := strings.ToLower(password)
	for _, name := range names {
		for _, part := range parts(name) {
			if strings.Contains(lower, part) {
				return fault.Invalidf("the password has the name of its user in it").WithNext("choose one that nobody can guess from the account")
			}
		}
	}
	if common(lower) {
		return fault.Invalidf("the password is one of those that are tried first").
			WithNext("choose several words that do not belong together, or let a password manager make one")
	}
	return nil
}

// parts are what of a name must not be in a password: the whole, the local part of an address, and words.
func parts(name string) []string {
	name = strings.ToLower(name)
	local, _, _ := strings.Cut(name, "@")
	var out []string
	words := strings.FieldsFunc(local, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, part := range append(words, name, local) {
		if utf8.RuneCountInString(part) >= shortestName {
			out = append(out, part)
		}
	}
	return out
}

// common reports whether a password in small letters is a common word with little around it, one thing again and again, or a walk along
// digits, the alphabet or a keyboard.
func common(lower string) bool {
	if repeats(lower) || walks(lower) {
		return true
	}
	for _, text := range []string{lower, plain(lower)} {
		for word := range words {
			if strings.Contains(text, word) && len(strings.ReplaceAll(text, word, "")) <= mostAdded {
				return true
			}
		}
	}
	return false
}

// repeats reports whether the text is a unit of at most four characters again and again, the last time perhaps in part.
func repeats(text string) bool {
	for unit := 1; unit <= 4; unit++ {
		if strings.Repeat(text[:unit], len(text)/unit+1)[:len(text)] == text {
			return true
		}
	}
	return false
}

// rows are what fingers walk along.
var rows = []string{"01234567890", "abcdefghijklmnopqrstuvwxyz", "qwertyuiop", "asdfghjkl", "zxcvbnm", "qwertzuiop", "azertyuiop",
	"1qaz2wsx3edc4rfv5tgb6yhn", "qazwsxedcrfvtgb", "1q2w3e4r5t6y7u8i9o0p", "q1w2e3r4t5y6", "!@#$%^&*()"}

// walks reports whether the text consists of at most three walks of three steps or more, and little else.
func walks(text string) bool {
	covered, count := 0, 0
	for i := 0; i < len(text); {
		longest := 0
		for _, row := range rows {
			for _, way := range []string{row, backwards(row)} {
				for n := min(len(text)-i, len(way)); n > max(longest, 2); n-- {
					if strings.Contains(way, text[i:i+n]) {
						longest = n
						break
					}
				}
			}
		}
		if longest == 0 {
			i++
			continue
		}
		covered, count, i = covered+longest, count+1, i+longest
	}
	return count > 0 && count <= 3 && len(text)-covered <= 2
}

func backwards(text string) string {
	out := []byte(text)
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return string(out)
}

// plain undoes what people write for letters.
func plain(lower string) string {
	return strings.NewReplacer("0", "o", "1", "i", "3", "e", "4", "a", "5", "s", "7", "t", "@", "a", "$", "s", "!", "i").Replace(lower)
}

// words are common passwords, and what common passwords are made of. Most of the published lists are these with digits around them.
var words = set(`
password passwort passwd passw0rd motdepasse contrasena senha parola haslo secret geheim private default
admin administrator root superuser superadmin sysadmin operator manager service support system server database oracle postgres mysql
login logon letmein openup access welcome willkommen bienvenue hello hallo hellothere changeme change temporary temppass initial
berth backend jupyter notebook cluster research science university student teacher
qwerty qwertz azerty asdfgh zxcvbn qazwsx abc123 trustno trustnoone whatever iloveyou loveyou lovely loveme
monkey dragon tiger falcon eagle phoenix panther dolphin butterfly elephant mustang wildcat kitten puppy chicken
football baseball basketball soccer hockey tennis fussball cricket arsenal chelsea liverpool barcelona realmadrid juventus yankees cowboys
sunshine princess flower summer winter spring autumn sommer january february october november december monday friday sunday
master shadow killer hunter ranger warrior soldier ninja samurai wizard magic merlin gandalf
superman batman spiderman starwars startrek pokemon pikachu naruto minecraft fortnite matrix nintendo playstation
michael michelle jennifer jessica jordan ashley daniel charlie thomas robert andrew matthew joshua anthony william alexander samantha
nicole amanda patrick george maggie jasmine hannah victoria elizabeth christian benjamin nicholas jonathan
computer internet samsung google facebook linkedin twitter microsoft windows iphone android linux ubuntu debian
freedom forever friends family blessed heaven jesus christ angel cookie chocolate cheese coffee banana orange pepper ginger
harley ferrari porsche mercedes corvette camaro yamaha honda toyota
america england germany france canada london paris berlin chicago dallas boston texas
trustme secure security nothing unknown anything something everything password1 mypassword thepassword
purple yellow silver golden diamond rainbow thunder lightning midnight
`)

func set(text string) map[string]struct{} {
	out := map[string]struct{}{}
	for word := range strings.FieldsSeq(text) {
		out[word] = struct{}{}
	}
	return out
}
