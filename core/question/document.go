// SPDX-License-Identifier: Apache-2.0

// Package question holds the queries about a node and their answers.
//
//	running proxy ──what a question Needs──┐
//	file of a snapshot ────────────────────┼──▶ Document ──one function a question──▶ answer ──▶ table, JSON, page
//	manifests ─────────────────────────────┘
//
// A question is one function of a Document and the question's parameters, whoever asks and wherever the
// document comes from. Answers have their JSON form here, which is stable; text for people is cmd's.
//
// A running proxy makes a document of what a question needs, and answers in its own process, for two reasons.
// An answer is kilobytes, while finding it may take everything that the node knows: explain looks for a sender among all
// endpoints. And the objects to read back from the data plane depend on the answer so far: trace reads those that its
// packet may meet, through the document's Plane. Only a snapshot is sent whole.
package question

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/flows"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/monitor"
	"github.com/tandem-proxy/tandem/core/oracle"
	"github.com/tandem-proxy/tandem/core/track"
)

// Document is what is known of a node at one moment. What a question does not need may be missing.
type Document struct {
	*engine.Snapshot // the inputs, what was resolved of them, and the state of the data plane
	Facts            Facts
	Plane            Plane
	Since            engine.Since // of the Service that was picked
	Counts           *TopSources  // nil where the data plane counts no connections
	Seen             *monitor.Part
	History          func(history.Filter) (history.Document, int, iter.Seq[*history.Entry])

	// Begun is when reading the data plane for this document began: differences that were found later are
	// current. ReadAt is when it was read, or since when no other program has written to it.
	Begun, ReadAt time.Time

	// Of manifests and snapshots: what was planned, the problems of the inputs, and notes on them.
	Plan     *dataplane.Plan
	Rejected []model.Problem
	Notes    []string

	Recorded *Recorded // of a snapshot
}

// Plane is the data plane of a document: one that is read when it is asked, or one that is planned. Functions
// that it lacks are nil.
type Plane struct {
	Implementation func([]*model.Port, oracle.Packet) []dataplane.Object
	Trace          func(context.Context, []*model.Port, oracle.Packet) (dataplane.Trace, error)
	Unread         error // why there is nothing to trace
	Preview        func([]model.Delta) []dataplane.Change
	Flows          func(context.Context, func(flows.Flow)) error // all tracked connections
	Listening      track.Ask                                     // processes of the node; nil where the system does not tell
}

// Recorded is what a snapshot has of its node that does not follow from its inputs.
type Recorded struct {
	Status Status
	Drift  Drift
	Top    *Top // nil where connections were not counted
}

// Planned is the document of what inputs mean in a mode.
func Planned(m dataplane.Mode, c *config.Config, s *engine.Snapshot) *Document {
	d := &Document{Snapshot: s, Facts: Facts{Node: s.Host.Name, Mode: string(m.Name)}}
	plan := m.Plan(c, s.Host, d.Ports())
	s.Backend.Gaps, d.Plan, d.Plane.Implementation = plan.Gaps, &plan, plan.Implementation
	return d
}

// Ports are those of all Services, in their order.
func (d *Document) Ports() (all []*model.Port) {
	for _, s := range d.Services {
		all = append(all, s.Ports...)
	}
	return all
}

// service returns a Service, an empty one if there is none of the name.
func (d *Document) service(n model.ServiceName) *track.View {
	for _, svc := range d.Services {
		if svc.Object.Name == n {
			return svc
		}
	}
	return new(track.View)
}

// Needs are the parts of a document that a question is answered from. A running proxy makes no others.
type Needs struct {
	// Services selects the Services that the answer depends on, on the engine's
	// goroutine. Nil where nothing of the engine's is needed.
	Services func(*track.Tracker) []*track.View
	Sorted   bool              // by name
	Since    model.ServiceName // the Service of which the times of programming are wanted
	Audit    bool              // the data plane read back
	Counts   *TopRequest       // connections, as the data plane counts them
	Events   *uint64           // what is seen of connections, from an event of this number on; 0 for the next one
}

// Verb is a question that a running proxy is asked over its control socket too. Parameters and Answer are its JSON; the
// answer's form is stable: fields are added, not changed.
type Verb[Parameters, Answer any] struct {
	Name   string
	Kernel bool // it reads the kernel or HNS
	Needs  func(Parameters) Needs
	Answer func(context.Context, *Document, Parameters) (Answer, error)
	// list is Answer with its longest list in the place of a field, made while it is written: a wire.Listing.
	list func(context.Context, *Document, Parameters) (any, error)
}

// Source makes a document, or what a question needs of it.
type Source func(context.Context, Needs) (*Document, error)

// Of answers the question about the document of a source.
func (v Verb[P, A]) Of(ctx context.Context, from Source, p P) (a A, err error) {
	d, err := from(ctx, v.Needs(p))
	if err != nil {
		return a, err
	}
	return v.Answer(ctx, d, p)
}

// Question is a Verb whatever its types, as a running proxy answers it.
type Question interface {
	Called() (name string, kernel bool)
	// Reply answers parameters in JSON: with an answer, or a wire.Listing in its place.
	Reply(ctx context.Context, parameters []byte, from Source) (any, error)
}

// Questions are all that a running proxy answers over its control socket.
func Questions() []Question {
	return []Question{Explain(), Outcomes(), TracePacket(), FindDrift(), ListServices(), ListChanges(), CountConnections(), PreviewEdit(), WatchConnections()}
}

func (v Verb[P, A]) Called() (name string, kernel bool) { return v.Name, v.Kernel }

func (v Verb[P, A]) Reply(ctx context.Context, parameters []byte, from Source) (any, error) {
	var p P
	r := json.NewDecoder(bytes.NewReader(parameters))
	r.DisallowUnknownFields()
	if err := r.Decode(&p); err != nil {
		return nil, fmt.Errorf("query %s: %w", v.Name, err)
	}
	if v.list == nil {
		return v.Of(ctx, from, p)
	}
	d, err := from(ctx, v.Needs(p))
	if err != nil {
		return nil, err
	}
	return v.list(ctx, d, p)
}

// ErrOlder means that the tandem that was asked does not know the question, or a parameter of it: it is of an older version.
var ErrOlder = errors.New("its version of tandem does not know this question")

// Refusal is the error of a question that a tandem of any version has answered with a text.
func Refusal(text string) error {
	unknown := strings.HasPrefix(text, "unknown query ") || strings.HasPrefix(text, "query ") && strings.Contains(text, ": json: unknown field ")
	if unknown || text == "404 page not found" { // as http.ServeMux has it
		return fmt.Errorf("%w: %s", ErrOlder, text)
	}
	return errors.New(text)
}

func unknownService(name model.ServiceName) error {
	return fmt.Errorf("no Service %s: none of this name was received, or it is labelled for another proxy", name)
}
