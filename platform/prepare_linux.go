package platform

import (
	"strconv"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/linux/host"
)

// prepare sets the kernel's tracking of connections.
func prepare(c *config.Config) (errs []error) {
	set := func(name string, value int) {
		if err := host.EnsureSysctl("net/netfilter/nf_conntrack_"+name, strconv.Itoa(value)); err != nil {
			errs = append(errs, err)
		}
	}
	timeout := func(name string, d time.Duration) {
		if d > 0 {
			set(name, int(d/time.Second))
		}
	}
	t := c.Conntrack
	if t.TCPEstablished != nil {
		timeout("tcp_timeout_established", *t.TCPEstablished)
	}
	if t.TCPCloseWait != nil {
		timeout("tcp_timeout_close_wait", *t.TCPCloseWait)
	}
	timeout("udp_timeout", t.UDP)
	timeout("udp_timeout_stream", t.UDPStream)
	if t.TCPBeLiberal {
		set("tcp_be_liberal", 1)
	}
	return errs
}
