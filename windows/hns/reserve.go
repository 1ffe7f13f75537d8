package hns

// Windows has 16,384 dynamic ports for TCP, of which each load balancer without
// DSR reserves 64 (Azure/AKS#1375): beyond half of them pods are at risk.
const manyWithoutDSR = 16384 / 64 / 2

func (d *Driver) warn() {
	d.table.mu.Lock()
	n := d.table.withoutDSR()
	d.table.mu.Unlock()
	if n > manyWithoutDSR {
		d.settings.Log.Warn("load balancers without DSR reserve 64 of the node's ports each: allow DSR (--enable-dsr) or widen the dynamic port range", "balancers", n)
	}
}

// withoutDSR counts the load balancers that answers go back through, whoever's.
func (t *table) withoutDSR() (n int) {
	seen := map[string]bool{}
	for _, have := range t.balancers {
		if !seen[have.lb.ID] && have.lb.Flags&FlagDSR == 0 {
			n++
		}
		seen[have.lb.ID] = true
	}
	return n
}
