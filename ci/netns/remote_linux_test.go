// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/relay"
	"github.com/tandem-proxy/tandem/core/test/conformance"
)

// remote is a tandem in a process of its own on the lab's node: this test binary
// a second time, which reads requests from its standard input and answers on its output.
type remote struct {
	mode    config.Mode
	enter   func(func() error) error
	wrap    func(*exec.Cmd) // changes how it is started; or nil
	cmd     *exec.Cmd
	in      io.WriteCloser
	ask     *json.Encoder
	answers *json.Decoder
	gaps    []gap
}

// asProxy in the environment makes this binary a proxy.
const asProxy = "TANDEM_TEST_AS_PROXY"

// request starts the proxy, or asks it to wait for what the folder holds.
type request struct {
	Dir  string               `json:",omitempty"`
	Host *config.Config       `json:",omitempty"`
	Mode config.Mode          `json:",omitempty"`
	Rows []conformance.Packet // to trace
}

type reply struct {
	Err    string
	Gaps   []gap
	Traces []question.Trace
}

func (r *remote) Start(ctx context.Context, dir string, host config.Config) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	r.cmd = exec.Command(self)
	r.cmd.Env = append(os.Environ(), asProxy+"=1")
	if r.wrap != nil {
		r.wrap(r.cmd)
	}
	r.cmd.Stderr = os.Stderr
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	r.ask, r.answers = json.NewEncoder(r.in), json.NewDecoder(out)
	if err := r.enter(r.cmd.Start); err != nil {
		r.cmd = nil
		return err
	}
	_, err = r.call(request{Dir: dir, Host: &host, Mode: r.mode})
	return err
}

func (r *remote) Changed(context.Context) error {
	_, err := r.call(request{})
	return err
}

func (r *remote) call(q request) (a reply, err error) {
	if err := r.ask.Encode(q); err != nil {
		return a, err
	}
	if err := r.answers.Decode(&a); err != nil {
		return a, fmt.Errorf("the proxy's process: %w", err)
	}
	if a.Err != "" {
		return a, errors.New(a.Err)
	}
	r.gaps = a.Gaps
	return a, nil
}

func (r *remote) Stop() error {
	if r.cmd == nil {
		return nil
	}
	return errors.Join(r.in.Close(), r.cmd.Wait())
}

// Gap reports whether the mode has declared that it does not support a row.
func (r *remote) Gap(row conformance.Packet) (model.Gap, bool) {
	if g, ok := sctpDrop(row); ok && r.mode == relay.Mode {
		return g, true
	}
	return find(r.gaps, row)
}

// serveRemote is the other end. It ends with its input.
func serveRemote() {
	p := &tandem{enter: func(f func() error) error { return f() }}
	questions, answers := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var q request
		if questions.Decode(&q) != nil {
			break
		}
		traces, err := p.handle(q)
		a := reply{Gaps: p.gaps, Traces: traces}
		if err != nil {
			a.Err = err.Error()
		}
		if answers.Encode(a) != nil {
			break
		}
	}
	if err := p.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (p *tandem) handle(q request) ([]question.Trace, error) {
	ctx, cancel := context.WithTimeout(context.Background(), programTime)
	defer cancel()
	switch {
	case q.Host != nil:
		p.mode = q.Mode
		return nil, p.Start(ctx, q.Dir, *q.Host)
	case q.Rows != nil:
		return p.Trace(ctx, q.Rows)
	}
	return nil, p.Changed(ctx)
}

func TestMain(m *testing.M) {
	if os.Getenv(asProxy) != "" {
		serveRemote()
		return
	}
	Main(m, 4)
}
