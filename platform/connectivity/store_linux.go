// SPDX-License-Identifier: Apache-2.0

package connectivity

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Store is the part of systemd that keeps descriptors of a service (FDSTORE of
// sd_notify(3)): sockets that one process leaves are given to the next.
type Store struct {
	socket *net.UnixConn
	done   chan struct{}

	mu    sync.Mutex
	names []string
	files []*os.File
}

// mostStored bounds the descriptors that are kept.
const mostStored = 4096

// NewStore opens a store with its socket in a folder. Close it.
func NewStore(dir string) (*Store, error) {
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		return nil, err
	}
	s := &Store{socket: socket, done: make(chan struct{})}
	go s.receive()
	return s, nil
}

// Close closes all stored connections.
func (s *Store) Close() error {
	errs := []error{s.socket.Close()}
	<-s.done
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

func (s *Store) receive() {
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
func (s *Store) take(text string, rights []byte) {
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
	if err != nil {
		return
	}
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			f := os.NewFile(uintptr(fd), name)
			if !strings.Contains(text, "FDSTORE=1") || len(s.files) == mostStored {
				f.Close() // such as that of BARRIER=1, which waits for this
				continue
			}
			s.names, s.files = append(s.names, name), append(s.files, f)
		}
	}
}

// Hand passes the stored sockets to a command, as systemd does.
func (s *Store) Hand(cmd *exec.Cmd) {
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

// Size is how many descriptors are kept.
func (s *Store) Size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.files)
}
