package userspace

import (
	"context"
	"fmt"

	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/linux/iptables"
)

// natTable is the nat table of iptables.
type natTable struct{ *iptables.NATTable }

func openNAT(ctx context.Context) (table, error) {
	t, err := iptables.OpenNAT(ctx)
	if err != nil {
		return nil, err
	}
	return natTable{t}, nil
}

// Read implements table.
func (t natTable) Read(ctx context.Context) (map[Key]found, error) {
	objects := map[Key]found{}
	for _, f := range t.Families() {
		text, err := t.NATTable.Read(ctx, f)
		if err != nil {
			return nil, err
		}
		s, err := parse(text, watched)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f, err)
		}
		s.objects(f, objects)
	}
	return objects, nil
}

// Write implements table.
func (t natTable) Write(ctx context.Context, f model.Family, edits []edit) error {
	b := newBatch()
	for _, e := range edits {
		b.edit(e)
	}
	if b.empty() {
		return nil
	}
	return t.Restore(ctx, f, b.text())
}

// Most implements table.
func (t natTable) Most() int { return 0 }
