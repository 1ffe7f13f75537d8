// SPDX-License-Identifier: Apache-2.0

package host

import (
	"os"

	"github.com/tandem-proxy/tandem/core/model"
)

const liberal = "net/netfilter/nf_conntrack_tcp_be_liberal"

// Liberal is the kernel parameter by which connection tracking takes TCP packets outside of
// the window for valid, of the network namespace that it was opened in. Rules need not drop
// those that it finds invalid then; as kube-proxy's, they are chosen by it once, at the start.
type Liberal struct{ file *os.File }

// RelyOnLiberal returns the parameter if it is on, or is to be set; else nil: then rules drop
// such packets.
func RelyOnLiberal(asked bool) *Liberal {
	l := &Liberal{}
	if f, err := os.Open(path(liberal)); err == nil {
		l.file = f
	}
	if asked || l.On() {
		return l
	}
	_ = l.Close() // it was read alone
	return nil
}

// On reports whether it is on now. It is read by any thread in the namespace that it was
// opened in, as its file belongs to that.
func (l *Liberal) On() bool {
	var b [1]byte
	if l.file == nil {
		return false
	}
	n, _ := l.file.ReadAt(b[:], 0)
	return n == 1 && b[0] != '0'
}

// Lost is the problem of rules that do without drops as it was on, or was to be set, at the
// start, where it is off now. Nil has none.
func (l *Liberal) Lost() []model.Problem {
	if l == nil || l.On() {
		return nil
	}
	return []model.Problem{{
		Object: "data plane", Why: model.WhyDegraded,
		Detail: "sysctl net.netfilter.nf_conntrack_tcp_be_liberal was on at the start and is off now: answers of endpoints that are outside of the TCP window reset connections; " +
			"set it to 1, or restart tandem, whose rules then drop such packets",
	}}
}

// Close closes it.
func (l *Liberal) Close() error {
	if l == nil || l.file == nil {
		return nil
	}
	return l.file.Close()
}
