// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/oracle"
)

// ErrAbsent is wrapped by the error of Open if the software that the mode needs is
// not installed, so that it cannot have programmed anything.
var ErrAbsent = errors.New("is not installed")

// ErrUndecided is wrapped by the error of Probe if whether the mode works is not known:
// what it asked was busy or did not answer. Then no other mode may be used, since that
// would remove what this one has programmed.
var ErrUndecided = errors.New("whether the mode works is not known yet")

// ErrNotReady is wrapped by the error of Open if something is missing that another program will
// make: Open may succeed later.
var ErrNotReady = errors.New("not ready")

// Mode is a way to implement Services, as --proxy-mode names it. Every backend
// package exports one; platform.Modes lists them.
type Mode struct {
	Name config.Mode

	// System is the operating system that the mode serves Services on, in Go's
	// words: "linux", "windows". The empty one is any. A mode must build, and
	// Plan, on every system.
	System string

	// Conntrack means that Linux itself forwards the mode's packets, and tracks
	// their flows. Then stale UDP flows have to be removed when endpoints go, and
	// a network namespace is a whole node to the mode.
	Conntrack bool
	// Unmarked means that conntrack entries of redirected flows lack the DNAT bit.
	Unmarked bool

	// Announced means that the system announces each write to the data plane, by whichever
	// program, so that nothing has to look for them.
	Announced bool

	// Ephemeral means that what the mode has programmed serves only while its process runs,
	// by relays, so a restart may program from partial inputs: no working rules are left to protect.
	Ephemeral bool

	// OnRequest modes are never chosen by auto, only by name.
	OnRequest bool

	// Fallback is the mode to use if this one is named and does not work here; empty
	// for none. config.Strict forbids it.
	Fallback config.Mode

	// Probe reports whether the mode can work on this machine, by trying in a
	// place of its own. The error states what is missing and how to get it, or wraps
	// ErrUndecided.
	Probe func(context.Context) error

	// Auto is used by auto instead of Probe, if the mode has an implementation that
	// must be requested by name. Nil means Probe.
	Auto func(context.Context) error

	// Await waits for prerequisites of Open that other programs create, maybe long
	// after system start. Nil if there are none.
	Await func(context.Context, *config.Config) error

	// Open opens the data plane, and changes nothing that is there. The caller closes
	// the backend, which may log as long as it is open. It waits for Await's prerequisites until the
	// context's deadline, and checks them once where there is none; where they are missing the
	// error wraps ErrNotReady.
	Open func(context.Context, *config.Config, *slog.Logger) (Backend, error)

	// OpenLeft opens what an earlier run has left, to remove it, where Open may lack what
	// only serving needs. Nil means Open.
	OpenLeft func(context.Context, *config.Config, *slog.Logger) (Backend, error)

	// Remove deletes what the mode has programmed on this machine, if that does not
	// need a working backend. Nil to use a backend's Remove.
	Remove func(context.Context, *config.Config) error

	// KubeProxy finds what kube-proxy has programmed on this machine, in its mode of
	// this name, and that this mode would not adopt. Nil if kube-proxy has no such
	// mode.
	KubeProxy func(context.Context) (Leftovers, error)

	// Plan returns what the mode would program, in the data plane's native format. It
	// needs no privileges and works on any system.
	Plan func(*config.Config, *model.Host, []*model.Port) Plan
}

// Elsewhere is a mode on a system that it does not work on, for a reason: it can only plan.
func (m Mode) Elsewhere(reason string) Mode {
	err := errors.New(reason + "; on this system only plan works")
	m.Probe = func(context.Context) error { return err }
	m.Open = func(context.Context, *config.Config, *slog.Logger) (Backend, error) { return nil, err }
	return m
}

// Leftovers are what another proxy has programmed.
type Leftovers struct {
	Found  []string // for people; empty when there is nothing
	Remove func(context.Context) error
}

// Plan is what a mode would program.
type Plan struct {
	Native  string // text that the system's own tools accept
	Objects int
	Gaps    map[model.PortID][]model.Gap

	// Implementation is that of Backend.
	Implementation func([]*model.Port, oracle.Packet) []Object

	// Trace is that of a Backend whose objects are as planned, but for some differences.
	Trace func([]*model.Port, oracle.Packet, []Difference) (Trace, error)
}

// PlanOf makes the plan of a mode with this compiler; native renders its objects.
func PlanOf[K comparable, V any](c Compiler[K, V], host *model.Host, ports []*model.Port, native func(map[K]V) string) Plan {
	objects, gaps := Compile(c, host, ports)
	return Plan{
		Native: native(objects), Objects: len(objects), Gaps: gaps,
		Implementation: func(of []*model.Port, p oracle.Packet) []Object { return Implementation(c, host, of, p) },
		Trace: func(of []*model.Port, p oracle.Packet, differ []Difference) (Trace, error) {
			return traceRecorded(c, host, of, p, differ)
		},
	}
}

// OpenWhenReady opens the data plane once its prerequisites exist.
func (m Mode) OpenWhenReady(ctx context.Context, c *config.Config, log *slog.Logger) (Backend, error) {
	if m.Await != nil {
		if err := m.Await(ctx, c); err != nil {
			return nil, err
		}
	}
	return m.Open(ctx, c, log)
}

// OpenLeftovers opens the data plane to remove what an earlier run has left.
func (m Mode) OpenLeftovers(ctx context.Context, c *config.Config, log *slog.Logger) (Backend, error) {
	if m.OpenLeft != nil {
		m.Open = m.OpenLeft
	}
	return m.OpenWhenReady(ctx, c, log)
}

// Clear deletes what a mode has programmed on this machine, and nothing else.
func (m Mode) Clear(ctx context.Context, c *config.Config) error {
	if m.Remove != nil {
		return m.Remove(ctx, c)
	}
	b, err := m.OpenLeftovers(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return errors.Join(b.Remove(ctx), b.Close())
}

// FirstOf joins several ways to do one mode, best first: the first that works
// on this machine is taken. There must be at least one, each for this system or
// for any. Ways that are OnRequest are taken when the mode is named, not by auto.
func FirstOf(name config.Mode, ways ...Mode) Mode {
	m := Mode{Name: name, Conntrack: ways[0].Conntrack, Ephemeral: ways[0].Ephemeral}
	first := func(ctx context.Context, ways []Mode) (*Mode, error) {
		way, err := FirstWorking(ctx, ways, func(ctx context.Context, way Mode) error { return way.Probe(ctx) })
		if way == nil && !errors.Is(err, ErrUndecided) {
			err = fmt.Errorf("no implementation works on this node: %w", err)
		}
		return way, err
	}
	probe := func(ctx context.Context, ways []Mode) error {
		if way, err := first(ctx, ways); way == nil {
			return err
		}
		return nil
	}
	m.Probe = func(ctx context.Context) error { return probe(ctx, ways) }
	m.Auto = func(ctx context.Context) error {
		return probe(ctx, slices.DeleteFunc(slices.Clone(ways), func(way Mode) bool { return way.OnRequest }))
	}
	m.Open = func(ctx context.Context, c *config.Config, log *slog.Logger) (Backend, error) {
		way, err := first(ctx, ways)
		if way == nil {
			return nil, err
		}
		if err != nil {
			log.Warn("using fallback implementation", "mode", name, "err", err)
		}
		return way.Open(ctx, c, log)
	}
	m.Remove = func(ctx context.Context, c *config.Config) error {
		var errs []error
		for _, way := range ways { // whichever it was
			if err := way.Clear(ctx, c); !errors.Is(err, ErrAbsent) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	m.Plan = func(c *config.Config, host *model.Host, ports []*model.Port) Plan {
		return ways[0].Plan(c, host, ports)
	}
	return m
}

// FirstWorking tries ways until one works, or until whether one works cannot be found out (ErrUndecided): another one
// would remove what that one has programmed. It returns the one that works, nil for none, and why those before it do not.
func FirstWorking[T any](ctx context.Context, ways []T, probe func(context.Context, T) error) (*T, error) {
	var failed []error
	for i, way := range ways {
		err := probe(ctx, way)
		if err == nil {
			return &ways[i], errors.Join(failed...)
		}
		if failed = append(failed, err); ctx.Err() != nil || errors.Is(err, ErrUndecided) {
			break
		}
	}
	return nil, errors.Join(failed...)
}
