package api

import "strings"

// wireNouns are the wire's words for objects that Berth itself calls by other names.
var wireNouns = map[string]string{
	"agent":          "agent instance",
	"project":        "user group (or project)",
	"resource group": "scaling group",
}

// WireNoun is the wire's word for a kind of object.
func WireNoun(noun string) string {
	if w := wireNouns[noun]; w != "" {
		return w
	}
	return noun
}

// WireMessage is a message about an object of the given kind with the wire's word for it where it says that there is no such
// object. Official clients and their users know that sentence.
func WireMessage(msg, noun string) string {
	if w := WireNoun(noun); w != noun {
		return strings.Replace(msg, "No such "+noun, "No such "+w, 1)
	}
	return msg
}
