package dataplane

import "github.com/tandem-proxy/tandem/core/model"

// RuleCounter is implemented by backends that program rules of iptables, for the
// metrics that kube-proxy has of them. It is used like a Backend.
type RuleCounter interface {
	// Rules tells for each table of each family how many rules of ours it has, and
	// how many were written since the last call.
	Rules(tell func(table string, f model.Family, total, written int))
}
