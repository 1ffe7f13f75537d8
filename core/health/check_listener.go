// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// check is one that is served.
type check struct {
	key       checkKey
	wanted    *wanted
	port      uint16
	binds     []netip.Addr
	within    []netip.Prefix
	listeners []net.Listener
}

func (k *check) fits(t task) bool {
	return t.wanted == k.wanted && t.port == k.port && slices.Equal(t.binds, k.binds) && slices.Equal(t.within, k.within)
}

// failure is a check that could not be opened.
type failure struct {
	port uint16
	wait time.Duration
	next time.Time
}

// bindAddresses says where a family's checks are served: on the addresses that node
// ports answer on. Where those are single addresses they are bound, otherwise all
// are and the others' connections reset: which addresses lie inside a prefix
// changes while we run. Within is nil for all.
func bindAddresses(host *model.Host, family model.Family) (binds []netip.Addr, within []netip.Prefix) {
	const most = 8 // listeners of one check
	for _, p := range host.NodePorts.Prefixes {
		if model.FamilyOf(p.Addr()) != family {
			continue
		}
		if p.Bits() == 0 {
			return []netip.Addr{family.Unspecified()}, nil
		}
		within = append(within, p)
		if p.IsSingleIP() {
			binds = append(binds, p.Addr())
		}
	}
	if len(binds) < len(within) || len(binds) > most {
		binds = []netip.Addr{family.Unspecified()}
	}
	return binds, within
}

// start opens a check, or notes when to try again.
func (c *Checks) start(ctx context.Context, t task) {
	k := &check{key: t.key, wanted: t.wanted, port: t.port, binds: t.binds, within: t.within}
	err := c.bind(ctx, k)
	if err == nil {
		c.open[t.key] = k
		if c.failing[t.key] != nil {
			c.o.Log.Info("healthCheckNodePort is served now", "service", t.key.service.String(), "port", t.port)
			delete(c.failing, t.key)
		}
		return
	}
	f := c.failing[t.key]
	if f == nil {
		f = &failure{port: t.port, wait: firstBind}
		c.failing[t.key] = f
		err = c.explain(k, err)
		c.o.Log.Warn("listening on healthCheckNodePort failed; retrying",
			"service", t.key.service.String(), "port", t.port, "family", t.key.family.String(), "err", err)
		if c.o.Failed != nil {
			c.o.Failed(t.key.service, t.port, err)
		}
	}
	f.next = time.Now().Add(f.wait)
	f.wait = min(2*f.wait, lastBind)
}

// bind opens the listeners of a check, all or none.
func (c *Checks) bind(ctx context.Context, k *check) error {
	listen := c.o.Listen
	if listen == nil {
		listen = new(net.ListenConfig).Listen
	}
	network := [...]string{model.IPv4: "tcp4", model.IPv6: "tcp6"}[k.key.family]
	for _, ip := range k.binds {
		l, err := listen(ctx, network, netip.AddrPortFrom(ip, k.port).String())
		if err != nil {
			k.close()
			return err
		}
		k.listeners = append(k.listeners, l)
	}
	for _, l := range k.listeners {
		c.group.Go(func() {
			_ = c.serve.Serve(limitedListener{Listener: l, limiter: &c.limiter, check: k, admit: k.admits}) // until it is closed
		})
	}
	return nil
}

// explain adds who has a port when it is one of our own.
func (c *Checks) explain(k *check, err error) error {
	for key, other := range c.open {
		if key.family == k.key.family && other.port == k.port {
			return fmt.Errorf("%w: it is the healthCheckNodePort of Service %s", err, key.service)
		}
	}
	return err
}

// admits reports whether a check answers on the address that a client asks.
func (k *check) admits(c net.Conn) bool {
	if k.within == nil {
		return true
	}
	at, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return false
	}
	ip := at.AddrPort().Addr().Unmap()
	return slices.ContainsFunc(k.within, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func (k *check) close() {
	for _, l := range k.listeners {
		_ = l.Close()
	}
}

// closeCheck closes a check with its connections.
func (c *Checks) closeCheck(key checkKey) {
	k := c.open[key]
	delete(c.open, key)
	k.close()
	c.limiter.closeAll(k)
}

// nextRetry returns when the next failure is due.
func (c *Checks) nextRetry() (next time.Time, any bool) {
	for _, f := range c.failing {
		if !any || f.next.Before(next) {
			next, any = f.next, true
		}
	}
	return next, any
}

// serviceAnswer is kube-proxy's document of a check.
type serviceAnswer struct {
	Service             serviceName `json:"service"`
	LocalEndpoints      int64       `json:"localEndpoints"`
	ServiceProxyHealthy bool        `json:"serviceProxyHealthy"`
}

type serviceName struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// answer serves a check, whatever the path.
func (c *Checks) answer(w http.ResponseWriter, r *http.Request) {
	conn := connOf(r)
	if conn == nil || conn.check == nil {
		http.Error(w, "no Service on this address", http.StatusNotFound)
		return
	}
	k := conn.check
	local, healthy := k.wanted.local.Load(), c.o.Healthy()
	w.Header().Set("Connection", "close") // a probe is one request
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.FormatInt(local, 10))
	code := http.StatusServiceUnavailable
	if local > 0 && healthy {
		code = http.StatusOK
	}
	name := k.key.service
	writeIndented(w, code, serviceAnswer{serviceName{name.Namespace, name.Name}, local, healthy})
}
