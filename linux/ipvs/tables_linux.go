package ipvs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	vns "github.com/vishvananda/netns"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// tables are the tables of iptables in one network namespace. They can only be
// reached through the system's iptables, whose variant (nf_tables or legacy) is
// its choice.
type tables struct{ ns vns.NsHandle }

func openTables() (*tables, error) {
	ns, err := vns.Get()
	if err != nil {
		return nil, fmt.Errorf("this thread's network namespace: %w", err)
	}
	return &tables{ns}, nil
}

func (t *tables) close() error { return t.ns.Close() }

// toolTime is how long one run of iptables may take. It waits for the lock that
// all share up to lockTime.
const (
	toolTime = time.Minute
	lockTime = "30"
)

// apply writes ops on chains and jumps: each table of each family as a whole or
// not at all. What fails in one family fails there alone.
func (t *tables) apply(ctx context.Context, ops []ledger.Op[Key, Value], errs []error) {
	for _, f := range model.Families() {
		text := restore(f, ops)
		if text == "" {
			continue
		}
		_, err := t.run(ctx, text, tool(f)+"-restore", "--noflush", "-w", lockTime)
		for i, op := range ops {
			if op.Key.Family == f {
				errs[i] = err
			}
		}
	}
}

// observe reads our chains of a family.
func (t *tables) observe(ctx context.Context, f model.Family, emit func(Key, Value)) error {
	text, err := t.run(ctx, "", tool(f)+"-save")
	if err == nil {
		parseSave(f, text, emit)
	}
	return err
}

// run runs a command in the namespace.
func (t *tables) run(ctx context.Context, input, name string, args ...string) (out string, err error) {
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	err = t.inside(func() error {
		out, err = command(ctx, input, name, args)
		return err
	})
	return out, err
}

// inside calls f on a thread in the namespace. It comes back, or ends with its
// goroutine.
func (t *tables) inside(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := vns.Get()
		if err == nil {
			err = vns.Set(t.ns)
		}
		if err == nil {
			err = f()
		}
		if err2 := vns.Set(home); err2 == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, home.Close())
	}()
	return <-done
}

func command(ctx context.Context, input, name string, args []string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errs
	cmd.WaitDelay = toolTime // for the last of its output, on a machine however busy
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}
