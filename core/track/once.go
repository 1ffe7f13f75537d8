package track

import "github.com/tandem-proxy/tandem/core/model"

// Once resolves a whole set of inputs at once, for plans and tests. Services
// are in order of name, and so are their ports.
func Once(host *model.Host, services []*model.Service, slices []*model.Slice) ([]Service, []*model.Port) {
	t := New()
	t.SetHost(host)
	for _, s := range services {
		t.SetService(s)
	}
	for _, s := range slices {
		t.SetSlice(s)
	}
	t.Flush()
	all := t.Services()
	var ports []*model.Port
	for _, s := range all {
		ports = append(ports, s.Ports...)
	}
	return all, ports
}
