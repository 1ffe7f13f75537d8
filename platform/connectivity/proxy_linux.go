// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// stopTime is how long a proxy may take to stop.
const stopTime = 10 * time.Second

// process is a tandem of a Rig's own, on the Rig's node. It is used by one goroutine.
type process struct {
	net   *netns.Net
	bin   string
	args  []string
	store *Store // of the descriptors that it leaves to the next one
	log   *tail

	running *exec.Cmd
	ended   chan struct{} // closed when running has ended
	err     error         // how, once it has
}

// command is the command line of a proxy for a site.
func (s *Site) command(dir, mode string, more []string) []string {
	args := []string{"run", "--manifests", dir, "--hostname-override", s.NodeName, "--proxy-mode", mode, "--proxy-mode-strict=" + strconv.FormatBool(mode != string(config.Auto))}
	var pods []string
	for _, f := range s.Families {
		pods = append(pods, s.pods(f).String())
	}
	return append(append(args, "--cluster-cidr", strings.Join(pods, ",")), more...)
}

// start starts the process. The kernel ends it when this one ends.
func (p *process) start() error {
	cmd := exec.Command(p.bin, p.args...)
	cmd.Stdout, cmd.Stderr = p.log, p.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.store.Hand(cmd)
	started := make(chan error, 1)
	p.ended = make(chan struct{})
	go func() {
		// Pdeathsig is about the thread that starts a process: it must not end before.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.net.Do(netns.Node, cmd.Start)
		started <- err
		if err == nil {
			p.err = cmd.Wait()
		}
		close(p.ended)
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.bin, err)
	}
	p.running = cmd
	return nil
}

// stop ends the process as a service manager does.
func (p *process) stop() error {
	if p.running == nil {
		return nil
	}
	cmd := p.running
	p.running = nil
	select {
	case <-p.ended:
		return p.alive()
	default:
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTime):
	}
	_ = cmd.Process.Kill() // fails only when it has ended
	<-p.ended
	return fmt.Errorf("tandem did not stop within %s and was killed", stopTime)
}

// alive returns an error when the process has ended.
func (p *process) alive() error {
	select {
	case <-p.ended:
		return fmt.Errorf("tandem ended by itself: %w: %s", cmp.Or(p.err, errors.New("exit code 0")), p.log)
	default:
		return nil
	}
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if extra := len(t.text) - tailSize; extra > 0 {
		t.text = slices.Delete(t.text, 0, extra)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// plan is the network of a site.
func (s *Site) plan() netns.Plan {
	p := netns.Plan{Node: s.Node}
	endpoint, client := netns.Pod{Place: "endpoint", Interface: "tandem-test0"}, netns.Pod{Place: "pod", Interface: "tandem-test1"}
	for _, f := range s.Families {
		endpoint.Addrs = append(endpoint.Addrs, s.address(f, blockPods, endpointHere))
		client.Addrs = append(client.Addrs, s.address(f, blockPods, clientPod))
		p.Others = append(p.Others, s.address(f, blockOthers, endpointElsewhere))
		p.Outside = append(p.Outside, s.address(f, blockOutside, outsideOne), s.address(f, blockOutside, outsideBeside))
	}
	p.Pods = []netns.Pod{endpoint, client}
	return p
}

// serve starts the backends.
func (s *Site) serve(n *netns.Net) error {
	for _, f := range s.Families {
		for _, a := range []netip.Addr{s.address(f, blockPods, endpointHere), s.address(f, blockOthers, endpointElsewhere)} {
			place, _ := n.PlaceOf(a)
			for _, proto := range protocols() {
				if _, err := n.Serve(place, netip.AddrPortFrom(a, targetPort), proto); err != nil {
					return fmt.Errorf("backend %s: %w", a, err)
				}
			}
		}
	}
	return nil
}
