// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tandem-proxy/tandem/core/relay"
)

// store is the part of systemd that keeps descriptors of a service (FDSTORE).
type store struct {
	socket *net.UnixConn
	done   chan struct{}

	mu    sync.Mutex
	names []string
	files []*os.File
}

func newStore(t *testing.T) *store {
	t.Helper()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s := &store{socket: socket, done: make(chan struct{})}
	go s.receive()
	t.Cleanup(func() {
		socket.Close()
		<-s.done
		for _, f := range s.files {
			f.Close()
		}
	})
	return s
}

func (s *store) receive() {
	defer close(s.done)
	text, rights := make([]byte, 4096), make([]byte, 64)
	for {
		n, m, _, _, err := s.socket.ReadMsgUnix(text, rights)
		if err != nil {
			return
		}
		s.take(string(text[:n]), rights[:m])
	}
}

// take obeys one message.
func (s *store) take(text string, rights []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := ""
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), "FDNAME="); ok {
			name = value
		}
	}
	if strings.Contains(text, "FDSTOREREMOVE=1") {
		for i := len(s.names) - 1; i >= 0; i-- {
			if s.names[i] == name {
				s.files[i].Close()
				s.names, s.files = append(s.names[:i], s.names[i+1:]...), append(s.files[:i], s.files[i+1:]...)
			}
		}
		return
	}
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || !strings.Contains(text, "FDSTORE=1") {
		return
	}
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			s.names, s.files = append(s.names, name), append(s.files, os.NewFile(uintptr(fd), name))
		}
	}
}

// wrap gives a command what is in the store, as systemd does.
func (s *store) wrap(cmd *exec.Cmd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+s.socket.LocalAddr().String())
	if len(s.files) == 0 {
		return
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, s.files...)
	cmd.Env = append(cmd.Env, fmt.Sprintf("LISTEN_FDS=%d", len(s.files)), "LISTEN_FDNAMES="+strings.Join(s.names, ":"))
	cmd.Args = append([]string{"sh", "-c", `LISTEN_PID=$$ exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

func (s *store) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files)
}

// TestUserspaceRestartUnderLoad ends and starts the userspace mode while clients
// connect: with a service manager that keeps its sockets none of them fails. What the
// process had accepted when it was killed ends with it.
func TestUserspaceRestartUnderLoad(t *testing.T) {
	s := newSite(t)
	kept := newStore(t)
	s.flags, s.wrap = []string{"--proxy-mode", string(relay.Mode)}, kept.wrap
	s.write("", "10.244.1.2", "10.244.1.3")
	s.start()
	if n := kept.size(); n == 0 {
		t.Fatal("no socket was handed over")
	}
	traffic := s.traffic()
	t.Cleanup(traffic.end)
	for range 3 {
		time.Sleep(500 * time.Millisecond)
		traffic.kills.Add(1)
		s.kill()
		time.Sleep(300 * time.Millisecond) // RestartSec
		s.start()
	}
	time.Sleep(500 * time.Millisecond)
	traffic.end()
	t.Logf("%d connections through 3 restarts, %d failed, %d were cut", traffic.made.Load(), traffic.failed.Load(), traffic.cut.Load())
	if n := traffic.cut.Load(); n > 10 {
		t.Errorf("%d connections were cut: more than a process has between accept and answer", n)
	}
	if n := traffic.failed.Load(); n > 0 {
		t.Errorf("%d of %d new connections failed, the last: %v", n, traffic.made.Load(), traffic.last.Load())
	}
	before := kept.size()
	s.put("apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nstatus: {addresses: [{type: InternalIP, address: " + nodeIP.String() + "}]}\n")
	s.eventually(20*time.Second, "sockets that serve nobody are given up", func() error {
		if n := kept.size(); n > 0 {
			return fmt.Errorf("%d of %d are kept", n, before)
		}
		return nil
	})
}
