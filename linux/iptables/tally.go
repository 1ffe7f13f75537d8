package iptables

import (
	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/xtables"
)

// tally counts rules, by family and table.
type tally struct{ total, written [2][2]int }

// wrote counts what a script has changed.
func (t *tally) wrote(f model.Family, table xtables.Table, ops []op, rules int) {
	for _, o := range ops {
		t.total[f][table] -= o.Old.Len()
		if o.Verb != ledger.Delete {
			t.total[f][table] += o.New.Len()
		}
	}
	t.written[f][table] += rules
}

// read counts what there is.
func (t *tally) read(objects map[Key]Value) {
	t.total = [2][2]int{}
	for k, v := range objects {
		t.total[k.Family][k.Table] += v.Len()
	}
}
