// Package rule decides about notices: which event becomes one and in which words, on which channels its reader hears of it, and what
// becomes of one that did not arrive.
package rule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
)

// Kind is a kind of notice.
type Kind string

// The kinds that users choose from, and Test, which is always delivered.
const (
	Ended  Kind = "ended"  // a session has ended without its user's word
	Failed Kind = "failed" // a session has failed
	Idle   Kind = "idle"   // a session will end because nobody uses it
	Shared Kind = "shared" // a folder was shared, or somebody invites to one
	Test   Kind = "test"
)

// Kinds are those that users choose from.
func Kinds() []Kind { return []Kind{Ended, Failed, Idle, Shared} }

// Channel is a way to a user.
type Channel string

// The channels.
const (
	Email   Channel = "email"
	Webhook Channel = "webhook"
)

// The events of folders.
const (
	Invited = "invited"
	Granted = "granted"
)

// Event is what happened to somebody.
type Event struct {
	// Name is that of an event of a session, Invited or Granted.
	Name string
	// Subject is the name of the session or folder.
	Subject string
	// Status, Result and Reason are of a session.
	Status cluster.Status
	Result cluster.Result
	Reason cluster.Reason
	// Detail is of a session what its event says besides, of a folder who shares it.
	Detail string
	// InvitationState is what became of the invitation meanwhile. Accepted: the grant is one that its reader accepted.
	InvitationState string
	Accepted        bool
}

// Notice is what somebody is told.
type Notice struct {
	Kind        Kind
	SubjectKind string // session or folder
	// Words is one sentence for people.
	Words string
}

const maxDetail = 500

// why is a reason in words; the console has the same (ended.* of web/src/words/sessions.ts).
var why = map[cluster.Reason]string{
	cluster.ReasonIdleTimeout: "nobody used it", cluster.ReasonIdleLifetime: "its lifetime was over",
	cluster.ReasonIdleUtilization: "it used too little", cluster.ReasonSelfTerminated: "it ended by itself",
	cluster.ReasonAgentLost: "its agent was lost", cluster.ReasonCrashed: "its container crashed",
	cluster.ReasonOutOfMemory: "out of memory", cluster.ReasonTaskFinished: "its command ended",
	cluster.ReasonTaskFailed: "its command failed", cluster.ReasonTaskTimeout: "its time limit was over",
	cluster.ReasonFailedToStart: "it could not start", cluster.ReasonFailedToCreate: "it could not be made",
	cluster.ReasonFailedToPull: "its image could not be pulled", cluster.ReasonPullTimeout: "its image was not pulled in time",
	cluster.ReasonClientGone: "its client went away", cluster.ReasonAdministrator: "an administrator ended it",
	cluster.ReasonDiskFull: "the disk of its host was full", cluster.ReasonPendingTimeout: "it waited too long",
	cluster.ReasonDependency: "a session that it depends on failed", cluster.ReasonPreempted: "others needed its place",
	cluster.ReasonDeviceLost:   "a device that it held broke",
	cluster.ReasonPeersMissing: "its kernels did not come together in time",
	cluster.ReasonRightEnded:   "its user lost a right that it needs",
}

// Of is the notice of an event; ok is false where there is nothing to tell.
func Of(e Event) (n Notice, ok bool) {
	switch e.Name {
	case string(cluster.SessionIdleWarning):
		return Notice{Idle, "session", sentence("Session %s ends soon", e.Subject, e.Detail)}, true
	case string(cluster.SessionDeviceLost):
		return Notice{Failed, "session", sentence("Session %s lost a device", e.Subject, e.Detail)}, true
	case string(cluster.SessionTerminated), string(cluster.SessionCancelled):
		return ofEnd(e)
	case Invited:
		if e.InvitationState != "pending" {
			return n, false // it was answered or taken back
		}
		return Notice{Shared, "folder", fmt.Sprintf("%s invites you to folder %s.", someone(e.Detail), e.Subject)}, true
	case Granted:
		if e.Accepted {
			return n, false
		}
		return Notice{Shared, "folder", fmt.Sprintf("Folder %s of %s is shared with you.", e.Subject, someone(e.Detail))}, true
	}
	return n, false
}

func ofEnd(e Event) (Notice, bool) {
	if cluster.OwnEnd(e.Reason) {
		return Notice{}, false
	}
	text := why[e.Reason]
	if text == "" {
		text = string(e.Reason)
	}
	if e.Detail != "" && e.Detail != text {
		text = strings.TrimPrefix(text+"; "+e.Detail, "; ")
	}
	if cluster.FailedEnd(e.Status, e.Result, e.Reason) {
		return Notice{Failed, "session", sentence("Session %s failed", e.Subject, text)}, true
	}
	return Notice{Ended, "session", sentence("Session %s has ended", e.Subject, text)}, true
}

// sentence is one line; what follows the colon is cut.
func sentence(format, name, more string) string {
	s := fmt.Sprintf(format, name)
	more = strings.TrimRight(strings.Join(strings.Fields(more), " "), ".")
	if more == "" {
		return s + "."
	}
	if r := []rune(more); len(r) > maxDetail {
		more = string(r[:maxDetail]) + "…"
	}
	return s + ": " + more + "."
}

func someone(name string) string {
	if name == "" {
		return "somebody"
	}
	return name
}

// Reader is whom a notice is for.
type Reader struct {
	Active  bool // and so is the domain
	Service bool // a service account: it reads no e-mail
	// Email and Webhook are the kinds that they want there.
	Email, Webhook []Kind
	HasWebhook     bool
	// MailWorks: the cluster sends e-mail.
	MailWorks bool
	// EmailsLately is how many e-mails were made for them within an hour, WebhooksWaiting how many notices wait for their receiver.
	EmailsLately, WebhooksWaiting int
}

const (
	// maxEmails is how many e-mails a user gets in an hour, MaxWaiting how many notices wait for one receiver.
	maxEmails  = 60
	maxWaiting = 200
)

// Delivery is a notice on one channel. With Refused it is not sent, for that reason.
type Delivery struct {
	Channel Channel
	Refused string
}

// Deliveries are the ways on which a reader hears of a kind.
func Deliveries(k Kind, r Reader) (out []Delivery) {
	if Wanted(k, Email, r) == "" {
		d := Delivery{Channel: Email}
		if r.EmailsLately >= maxEmails {
			d.Refused = fmt.Sprintf("%d e-mails were sent within an hour", maxEmails)
		}
		out = append(out, d)
	}
	if Wanted(k, Webhook, r) == "" {
		d := Delivery{Channel: Webhook}
		if r.WebhooksWaiting >= maxWaiting {
			d.Refused = fmt.Sprintf("%d notices wait for this receiver already", maxWaiting)
		}
		out = append(out, d)
	}
	return out
}

// Wanted says why a reader is not told of a kind on a channel; "" when they are.
func Wanted(k Kind, c Channel, r Reader) string {
	kinds := r.Email
	if c == Webhook {
		kinds = r.Webhook
	}
	switch {
	case !r.Active:
		return "the user is not active"
	case c == Email && !r.MailWorks:
		return "this cluster sends no e-mail"
	case c == Email && r.Service:
		return "service accounts read no e-mail"
	case c == Webhook && !r.HasWebhook:
		return "there is no webhook any more"
	case k != Test && !slices.Contains(kinds, k):
		return "notices of this kind are not wanted there"
	}
	return ""
}

const (
	// MaxAttempts is how often a notice is sent before it is given up.
	MaxAttempts = 8
	firstGap    = 15 * time.Second
	longestGap  = time.Hour
)

// Again is how long to wait after an attempt that failed, the first being 1; ok is false when it was the last.
func Again(attempt int) (gap time.Duration, ok bool) {
	if attempt >= MaxAttempts {
		return 0, false
	}
	gap = firstGap
	for range attempt - 1 {
		if gap *= 4; gap > longestGap {
			return longestGap, true
		}
	}
	return gap, true
}
