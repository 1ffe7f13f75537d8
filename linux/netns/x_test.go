package netns
import ("testing";"time";"os/exec";"github.com/tandem-proxy/tandem/core/model")
func TestX(t *testing.T){
	for i := range 60 {
	n, err := New(t.Context(), plan())
	if err != nil { t.Fatal(err) }
	serve(t,n,model.UDP,"[fd00:10:244:1::2]:8080")
	c:=Call{From:Node,Src:addr("2001:db8::1"),Proto:model.UDP,To:at("[fd00:10:244:1::2]:8080"),Timeout:300*time.Millisecond}
	a,err:=n.Dial(c)
	if a.Outcome!=Answered {
	for _,pl := range []Place{Node,"a6"} {
	n.Do(pl,func() error { o,_:=exec.Command("sh","-c","ip -6 neigh; ip -6 route; ip -6 addr; cat /proc/net/snmp6 | grep Ip6 | grep -v -w 0; cat /proc/net/dev; cat /proc/net/snmp6 | grep Udp6").CombinedOutput(); t.Log(i,pl,err,string(o)); return nil})
	}
	a,err=n.Dial(c)
	t.Log("again",a,err)
	n.Close()
	break
	}
	n.Close()
	}
}
