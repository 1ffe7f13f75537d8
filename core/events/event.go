// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// Type is the type of an Event, in Kubernetes' words.
type Type string

const (
	Normal  Type = "Normal"
	Warning Type = "Warning"
)

// Event is something that happened to an object, for people.
type Event struct {
	About  model.Key
	Type   Type
	Reason string // in upper camel case: stable, for machines
	Action string // the activity, likewise
	Note   string // what happened, and what to do about it

	// Everywhere means that every node would write the same Event. Then the first one
	// writes it for all.
	Everywhere bool
}

// Record is an Event to write: a new one, or a higher count of an earlier one.
type Record struct {
	Event
	Count       int // how often, so far
	First, Last time.Time
	Written     bool // an earlier Record of it was written
}

// Name is the name of the API object for a node's Event about an object with a UID, empty where that is
// unknown. It is the same for equal Events, so that neither a restart nor other nodes write them
// again; an object that is made again has Events of its own.
func (e Event) Name(node, uid string) string {
	if e.Everywhere {
		node = ""
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%q", []string{string(e.Type), e.Reason, e.Action, e.Note, node, e.About.Kind, uid})
	const most = 253 - 17 // bytes that names may have, less the dot and the hash
	return fmt.Sprintf("%s.%016x", e.About.Name[:min(len(e.About.Name), most)], h.Sum64())
}

// Composer composes the Events of the proxy. Node is the Node
// that this machine is.
type Composer struct{ Node string }

// Actions. Those of kube-proxy's own Events are kube-proxy's.
const (
	startAction   = "StartKubeProxy"
	listenAction  = "Listen"
	programAction = "Program"
)

func (t Composer) node(kind Type, reason, action, format string, args ...any) Event {
	return Event{About: model.Key{Kind: "Node", Name: t.Node}, Type: kind, Reason: reason, Action: action, Note: fmt.Sprintf(format, args...)}
}

// Starting: the proxy starts.
func (t Composer) Starting(version, mode string) Event {
	return t.node(Normal, "Starting", startAction, "tandem %s starting in mode %s", version, mode)
}

// HealthAddress: the health address cannot be bound.
func (t Composer) HealthAddress(err error) Event {
	return t.node(Warning, "FailedToStartProxierHealthcheck", startAction,
		"%v. Health checks are not served: free the port, or set --healthz-bind-address", err)
}

// MetricsAddress: the metrics address cannot be bound.
func (t Composer) MetricsAddress(err error) Event {
	return t.node(Warning, "FailedToStartMetricServer", startAction,
		"%v. Metrics are not served: free the port, or set --metrics-bind-address", err)
}

// Fallback: another mode runs than the configured one.
func (t Composer) Fallback(asked, runs string, err error) Event {
	return t.node(Warning, "ModeFallback", startAction,
		"mode %s unavailable (%v); using mode %s. Run `tandem doctor` on the node for details", asked, err, runs)
}

// Switched: the mode was changed while running.
func (t Composer) Switched(from, to string) Event {
	return t.node(Normal, "ModeSwitched", programAction, "switched to mode %s from mode %s", to, from)
}

// Drifted: the data plane was changed externally, by one of some programs. The
// number of objects would make each an Event of its own.
func (t Composer) Drifted(by dataplane.Candidates) Event {
	who := "another program on this node"
	if len(by.Writers) > 0 {
		who += " (" + by.String() + ")"
	}
	return t.node(Warning, "RulesRepaired", programAction,
		"%s changed or removed rules of Services; they were repaired. See the log, or tandem drift, for the objects and times", who)
}

// Silent: endpoints that have stopped answering are ejected, or are only observed.
func (t Composer) Silent(p model.Problem, observed bool) Event {
	then := "New connections go to other endpoints until they answer again"
	if observed {
		then = "Nothing is changed (--endpoint-failover=observe)"
	}
	return t.node(Warning, p.Why.String(), programAction, "%s: %s. %s", p.Object, p.Detail, then)
}

// Check: a healthCheckNodePort cannot be served.
func (t Composer) Check(svc model.ServiceName, port uint16, err error) Event {
	e := aboutService(svc, Warning, "FailedToStartServiceHealthcheck", listenAction)
	e.Note = fmt.Sprintf("node %s cannot serve healthCheckNodePort %d: %v. Load balancers treat the node as one without endpoints; "+
		"free the port on the node, or set another one in the Service", t.Node, port, err)
	return e
}

// ServiceState composes the Event of a changed Service state; ok is false when that
// needs no Event: problems that make it Partial have Events of their own, and the end of a state of
// which no Event said anything is no news.
func (t Composer) ServiceState(s engine.StateChange) (e Event, ok bool) {
	switch {
	case s.Gone || s.State == s.Was || s.State == model.Partial && s.Was == model.Programmed:
		return e, false
	case s.State == model.Failing:
		e = aboutService(s.Service, Warning, "ProgrammingFailed", programAction)
		e.Note = fmt.Sprintf("node %s programmed it only in part and retries: %s. Run `tandem status` on the node for details", t.Node, s.Detail)
	case s.Was == model.Partial && s.Brief:
		return e, false
	case s.Was == model.Partial:
		e = aboutService(s.Service, Normal, "Programmed", programAction)
		e.Note, e.Everywhere = "fully programmed; all problems are solved", true
	case s.State == model.Partial:
		e = aboutService(s.Service, Normal, "Programmed", programAction)
		e.Note = fmt.Sprintf("node %s has programmed it again, except: %s", t.Node, s.Detail)
	default:
		e = aboutService(s.Service, Normal, "Programmed", programAction)
		e.Note = fmt.Sprintf("node %s has programmed all of it", t.Node)
	}
	return e, true
}

// Problem: something was rejected, skipped or is unsupported; ok is false when
// it is about no object of the API.
func (t Composer) Problem(p model.Problem) (e Event, ok bool) {
	kind, name, found := strings.Cut(p.Object, " ")
	if !found || name == "" || strings.ContainsAny(name, `" `) {
		return e, false
	}
	about := model.Key{Kind: kind, Name: name}
	switch kind {
	case "Service", "EndpointSlice":
		if about.Namespace, about.Name, _ = strings.Cut(name, "/"); about.Namespace == "" || about.Name == "" {
			return e, false
		}
	case "Node":
	default:
		return e, false
	}
	note := p.Text()
	if h := hint(p.Why); h != "" {
		note += ". " + h
	}
	// What a mode or a node lacks differs from node to node.
	everywhere := kind != "Node" && p.Why != model.WhyUnsupported && p.Why != model.WhyNodeAddress
	return Event{About: about, Type: Warning, Reason: p.Why.String(), Action: programAction, Note: note, Everywhere: everywhere}, true
}

func aboutService(n model.ServiceName, kind Type, reason, action string) Event {
	return Event{About: model.Key{Kind: "Service", Namespace: n.Namespace, Name: n.Name}, Type: kind, Reason: reason, Action: action}
}

// hint reports what to do about a problem; empty where the message already says it.
func hint(why model.Reason) string {
	switch why {
	case model.WhyFrontendTaken:
		return "Change the address or port of one of them; until then a cluster IP, a node port of this node, or else the older Service keeps it"
	case model.WhyBadAddress:
		return "Remove the address; the rest of the object is used"
	case model.WhyClosed:
		return "Add a range of its family to loadBalancerSourceRanges, or remove the address"
	case model.WhyOwnFrontend:
		return "Set the endpoint to the address of a backend, not of the Service"
	case model.WhyBadRange:
		return "Write loadBalancerSourceRanges as CIDRs such as 192.0.2.0/24; clients in the invalid one are dropped"
	case model.WhyNoTargetPort:
		return "Give the ports of the EndpointSlices the names and protocols of the Service's ports"
	case model.WhyInvalid:
		return "Correct the field; the valid parts of the object, or its last valid version, remain in use"
	case model.WhyUnsupported:
		return "Run this node in a mode that supports it (`tandem doctor`)"
	case model.WhyNoNode:
		return "Check that a Node object with the name of --hostname-override exists"
	}
	return ""
}
