// SPDX-License-Identifier: Apache-2.0

package userspace

import "context"

// Observe implements dataplane.Driver.
func (d *Driver) Observe(ctx context.Context, found func(Key, Value)) error {
	have, err := d.observe(ctx)
	for k, v := range have {
		found(k, v)
	}
	return err
}

func (d *Driver) observe(ctx context.Context) (map[Key]Value, error) {
	d.mu.Lock()
	d.committed = map[Key]bool{}
	d.table.Reading()
	d.mu.Unlock()
	rules, hasAddr, err := d.read(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	meanwhile := d.committed
	d.committed = nil
	if err != nil {
		return nil, err
	}
	objects := map[Key]Value{}
	for _, f := range d.table.Families() {
		if hasAddr[f] {
			objects[Key{Kind: KindAddress, Family: f}] = Value{}
		}
		if d.dropPorts[f] != nil {
			objects[Key{Kind: KindDropPort, Family: f}] = Value{}
		}
	}
	for id, r := range d.relays.open {
		objects[Key{Kind: KindRelay, Family: id.Port.Family, Relay: id}] = Value{Policy: r.policy}
	}
	have := map[Key]installed{}
	for k, r := range rules {
		objects[k], have[k] = d.target(r), r.installed
	}
	for k := range meanwhile { // newer than what was read
		if newer, ok := d.rules[k]; ok {
			have[k] = newer
		} else {
			delete(have, k)
		}
	}
	d.rules = have
	return objects, nil
}

func (d *Driver) read(ctx context.Context) (rules map[Key]found, hasAddr [2]bool, err error) {
	if rules, err = d.table.Read(ctx); err != nil {
		return rules, hasAddr, err
	}
	for _, f := range d.table.Families() {
		if d.sharedAddr {
			break
		}
		if hasAddr[f], err = hasRelayAddr(f); err != nil {
			return rules, hasAddr, err
		}
	}
	return rules, hasAddr, nil
}

// target returns the content of what was read. An entry leads to a relay only
// if one listens there, or will: where it was in an earlier run.
func (d *Driver) target(r found) Value {
	if r.relay != (RelayID{}) && !d.relays.leadsTo(r.relay, r.port) {
		r.To.Do = unknown
	}
	return r.Value
}
