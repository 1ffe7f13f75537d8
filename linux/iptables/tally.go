package iptables

import (
	"strings"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/core/model"
)

// tally counts rules, by family and table.
type tally struct{ total, written [2][2]int }

// wrote counts what a script has changed.
func (t *tally) wrote(f model.Family, table Table, ops []op, rules int) {
	for _, o := range ops {
		t.total[f][table] -= o.Old.rules()
		if o.Verb != ledger.Delete {
			t.total[f][table] += o.New.rules()
		}
	}
	t.written[f][table] += rules
}

// read counts what there is.
func (t *tally) read(objects map[Key]Value) {
	t.total = [2][2]int{}
	for k, v := range objects {
		t.total[k.Family][k.Table] += v.rules()
	}
}

// rules is how many rules a text has.
func (v Value) rules() int { return strings.Count(string(v), "\n") }
