// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/test/growth"
)

// silent returns an address whose SYNs are not answered: a listener that accepts
// nothing, with a full queue.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(name.(*syscall.SockaddrInet4).Port))
	for range 10 {
		c, err := net.DialTimeout("tcp", at.String(), 100*time.Millisecond)
		if err != nil {
			return at
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Skip("the queue of a listener does not fill up here")
	return at
}

// An endpoint that is silent costs its client one wait, and other clients
// nothing: connections are made beside each other.
func TestSilentEndpoints(t *testing.T) {
	s := newServer(t, Options{})
	dead, good := silent(t), named(t)
	r := listen(t, s, model.TCP, balance(dead, good.at))
	const clients = 8
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			c, err := net.Dial("tcp", r.Addr().String())
			if err == nil {
				io.ReadAll(c)
				c.Close()
			}
		})
	}
	all.Wait()
	if st := s.Stats(); st.Retried != clients/2 || st.Failed != 0 {
		t.Errorf("%+v", st)
	}
}

// child runs a test of this package in a process of its own, where what it
// does to limits and memory affects no other test.
func child(t *testing.T, test string) (in io.WriteCloser, out *bufio.Reader, pid int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$", "-test.v")
	cmd.Env = append(os.Environ(), "TANDEM_RELAY_CHILD=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the relay's process: %v", err)
		}
	})
	return in, bufio.NewReader(stdout), cmd.Process.Pid
}

// TestChild is a process with one relay to the endpoint that stdin names, until
// stdin ends. On request it prints its figures.
func TestChild(t *testing.T) {
	if os.Getenv("TANDEM_RELAY_CHILD") == "" {
		t.Skip("only as a process of its own")
	}
	var limit uint64
	var endpoint string
	in := bufio.NewReader(os.Stdin)
	if _, err := fmt.Fscanln(in, &limit, &endpoint); err != nil {
		t.Fatal(err)
	}
	if limit > 0 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			t.Fatal(err)
		}
	}
	s := NewServer(Options{})
	r, err := s.Listen(model.TCP, anyPort, balance(netip.MustParseAddrPort(endpoint)))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\nat %s\n", r.Addr())
	for {
		if _, err := in.ReadString('\n'); err != nil {
			break
		}
		fmt.Printf("\nlimited %d failed %d\n", s.Stats().Limited+s.Stats().Exhausted, s.Stats().Failed)
	}
	if err := s.Close(0); err != nil {
		t.Error(err)
	}
}

// lineAfter returns the rest of the next line that starts with a word.
func lineAfter(t *testing.T, out *bufio.Reader, word string) string {
	t.Helper()
	for {
		line, err := out.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if rest, ok := strings.CutPrefix(line, word+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
}

// When descriptors run out, clients wait until others have gone: none is turned
// away, and nothing dies.
func TestOutOfDescriptors(t *testing.T) {
	slow := newBackend(t, func(c *net.TCPConn) {
		io.ReadAll(c)
		io.WriteString(c, "done")
	})
	in, out, _ := child(t, "TestChild")
	fmt.Fprintf(in, "200 %s\n", slow.at)
	at := netip.MustParseAddrPort(lineAfter(t, out, "at"))
	var clients []*net.TCPConn
	for range 150 {
		clients = append(clients, dial(t, at))
	}
	time.Sleep(200 * time.Millisecond) // until the relay has as many as it can
	for i, c := range clients {
		c.CloseWrite()
		if got, err := io.ReadAll(c); string(got) != "done" {
			t.Fatalf("client %d: %q, %v", i, got, err)
		}
		c.Close()
	}
	fmt.Fprintln(in)
	var limited, failed int
	fmt.Sscanf(lineAfter(t, out, "limited"), "%d failed %d", &limited, &failed)
	t.Logf("%d connections waited", limited)
	if limited == 0 || failed != 0 {
		t.Errorf("%d connections waited, %d failed", limited, failed)
	}
}

// An idle connection, on which something was said before, costs little.
func TestIdleMemory(t *testing.T) {
	const n, most = 1000, 20 << 10
	if growth.Raced() {
		t.Skip("the race detector needs memory of its own")
	}
	e := echo(t)
	in, out, pid := child(t, "TestChild")
	fmt.Fprintf(in, "0 %s\n", e.at)
	at := netip.MustParseAddrPort(lineAfter(t, out, "at"))
	talk := func(c net.Conn) {
		b := make([]byte, 512)
		c.Write(b)
		if _, err := io.ReadFull(c, b); err != nil {
			t.Fatal(err)
		}
	}
	talk(dial(t, at)) // what the first one alone needs
	before := resident(t, pid)
	for range n {
		talk(dial(t, at))
	}
	each := (resident(t, pid) - before) / n
	t.Logf("%d bytes resident for each of %d idle connections", each, n)
	if each > most {
		t.Errorf("%d bytes, want at most %d", each, most)
	}
}

// resident is how many bytes of memory a process has.
func resident(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
