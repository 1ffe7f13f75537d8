// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// eachAlone runs a test with either kind of table, each in a process and a network
// namespace of its own, so that relays dial there, too.
func eachAlone(t *testing.T, test func(t *testing.T, k tableKind)) {
	for i, name := range []string{"iptables", "nftables"} {
		t.Run(name, func(t *testing.T) {
			if os.Getenv(aloneVariable) == "" {
				again(t, t.Name())
				return
			}
			k := tableKinds()[i]
			table, err := k.open(t.Context())
			if err == nil {
				err = errors.Join(k.try(t.Context(), table, model.IPv4), table.Close())
			}
			if err != nil {
				t.Skip(err)
			}
			test(t, k)
		})
	}
}

const aloneVariable = "TANDEM_TEST_ALONE"

// again runs one test in a process that is alone in its network namespace.
func again(t *testing.T, name string) {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+name+"$", "-test.v")
	cmd.Env = append(os.Environ(), aloneVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Fatalf("%v:\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP")):
		t.Skipf("%s", out)
	}
}

// node gives the namespace this node's address, and a way for all else on which
// no relay is.
func node(t *testing.T) netip.Addr {
	t.Helper()
	do(t, "ip link set lo up && ip link add void type veth peer name void-end && ip link set void up && ip link set void-end up && "+
		"ip addr add 192.0.2.1/24 dev void && ip route add default via 192.0.2.254")
	return netip.MustParseAddr("192.0.2.1")
}

// pointing is a Service port with one endpoint, for everybody.
func pointing(name string, proto model.Proto, endpoint string, fronts ...model.Frontend) *model.Port {
	act := model.Action{Pool: &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort(endpoint)}}}}
	for i := range fronts {
		fronts[i].On = [...]model.Action{act, act, act}
	}
	return &model.Port{
		ID:        model.PortID{Service: model.ServiceName{Namespace: "default", Name: name}, Proto: proto},
		Frontends: fronts,
	}
}

func clusterIP(at string) model.Frontend {
	return model.Frontend{Kind: model.KindClusterIP, At: netip.MustParseAddrPort(at)}
}

func nodePort(at string) model.Frontend {
	return model.Frontend{Kind: model.KindNodePort, At: netip.MustParseAddrPort(at)}
}

// Services that are each other's endpoints serve no client, and one connection to
// them is one.
func TestServicesInACircle(t *testing.T) {
	eachAlone(t, func(t *testing.T, k tableKind) {
		echo, err := net.ListenPacket("udp", netip.AddrPortFrom(node(t), 7).String())
		if err != nil {
			t.Fatal(err)
		}
		defer echo.Close()
		go echoUDP(echo)
		ports := []*model.Port{pointing("echo", model.UDP, echo.LocalAddr().String(), clusterIP("10.96.0.12:80"))}
		for _, p := range []model.Proto{model.TCP, model.UDP} {
			ports = append(ports,
				pointing("a", p, "10.96.0.11:80", clusterIP("10.96.0.10:80")), pointing("b", p, "10.96.0.10:80", clusterIP("10.96.0.11:80")),
				pointing("c", p, "192.0.2.1:30081", nodePort("0.0.0.0:30080")), pointing("d", p, "192.0.2.1:30080", nodePort("0.0.0.0:30081")),
			)
		}
		p := start(t, k, ports...)
		defer p.stop()
		p.sync()
		for _, at := range []string{"10.96.0.10:80", "192.0.2.1:30080"} {
			c, err := net.Dial("tcp", at) // that is to the relay
			if err == nil {
				err = echoes(c)
				c.Close()
			}
			if err == nil {
				t.Errorf("%s answers", at)
			}
			u, err := net.Dial("udp", at)
			if err != nil {
				t.Fatal(err)
			}
			defer u.Close()
			if _, err := u.Write([]byte("x")); err != nil {
				t.Error(err)
			}
		}
		roundTrips(t, "10.96.0.12:80", 100) // meanwhile, a circle would be gone round many times
		st := p.driver.relays.server.Stats()
		if st.Accepted != 2 || st.Sessions > 2+1 || st.Open != 0 {
			t.Errorf("two clients of TCP and two of UDP, and that of the echo: %+v", st)
		}
	})
}

// An endpoint on this node whose port is some node port's number is the one who
// listens there.
func TestEndpointOnTheNumberOfANodePort(t *testing.T) {
	eachAlone(t, func(t *testing.T, k tableKind) {
		at := netip.AddrPortFrom(node(t), 30080).String()
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		u, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer u.Close()
		go echoTCP(l)
		go echoUDP(u)
		var ports []*model.Port
		for _, p := range []model.Proto{model.TCP, model.UDP} {
			ports = append(ports, pointing("own", p, at, clusterIP("10.96.0.10:80"), nodePort("0.0.0.0:30080")))
		}
		p := start(t, k, ports...)
		defer p.stop()
		p.sync()
		for _, proto := range []string{"tcp", "udp"} {
			for _, to := range []string{"10.96.0.10:80", at} {
				if err := served(proto, to); err != nil {
					t.Errorf("%s %s: %v", proto, to, err)
				}
			}
		}
		if st := p.driver.relays.server.Stats(); st.Accepted != 2 || st.Sessions != 2 {
			t.Errorf("two clients of TCP and two of UDP: %+v", st)
		}
	})
}

func served(proto, to string) error {
	c, err := net.Dial(proto, to)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := echoes(c); err != nil {
		return fmt.Errorf("connected: %w", err)
	}
	return nil
}

// roundTrips sends datagrams to a Service that answers, one after the other.
func roundTrips(t *testing.T, to string, n int) {
	t.Helper()
	c, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range n {
		if err := echoes(c); err != nil {
			t.Fatal(err)
		}
	}
}

func echoTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
	}
}

func echoUDP(u net.PacketConn) {
	b := make([]byte, 100)
	for {
		n, from, err := u.ReadFrom(b)
		if err != nil {
			return
		}
		_, _ = u.WriteTo(b[:n], from)
	}
}
