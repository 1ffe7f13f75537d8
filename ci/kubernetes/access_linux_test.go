// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tandem-proxy/tandem/ci/kubernetes/cluster"
)

// TestRightsSuffice reads in the server's own log that tandem never requested
// anything that system:node-proxier does not give.
func TestRightsSuffice(t *testing.T) {
	c := start(t, cluster.Options{Audit: true})
	n := servingNode(t, c)
	n.write(c.Client(), "10.244.1.3")
	n.answers(soon, "10.244.1.3")
	if err := n.process.Stop(5 * time.Second); err != nil {
		t.Error(err)
	}
	done := map[string]bool{}
	n.eventually(10*time.Second, "the watches end", func() error {
		requests, err := c.Requests()
		for _, r := range requests {
			if r.User.Username != "system:kube-proxy" {
				continue
			}
			what := r.Verb + " " + r.ObjectRef.Resource
			done[what] = true
			if r.ResponseStatus.Code == 401 || r.ResponseStatus.Code == 403 {
				t.Errorf("%s: %d", what, r.ResponseStatus.Code)
			}
		}
		for _, resource := range []string{"services", "endpointslices", "nodes"} {
			if err == nil && !done["watch "+resource] {
				err = fmt.Errorf("no watch of %s", resource)
			}
		}
		return err
	})
	t.Logf("tandem did: %v", slices.Sorted(maps.Keys(done)))
}

// TestMissingRight removes one permission after the other: tandem continues, and
// logs which one is missing.
func TestMissingRight(t *testing.T) {
	c := start(t, cluster.Options{})
	rules := map[string]string{"services": "", "nodes": "", "endpointslices": "discovery.k8s.io", "servicecidrs": "networking.k8s.io"}
	for resource, group := range rules {
		for _, verb := range []string{"list", "watch"} {
			t.Run(verb+" "+resource, func(t *testing.T) {
				user := "without-" + verb + "-" + resource
				var role []rbacv1.PolicyRule
				for r, g := range rules {
					verbs := []string{"get", "list", "watch"}
					if r == resource {
						verbs = slices.DeleteFunc(verbs, func(v string) bool { return v == verb })
					}
					role = append(role, rbacv1.PolicyRule{APIGroups: []string{g}, Resources: []string{r}, Verbs: verbs})
				}
				if err := allow(t.Context(), c.Client(), rbacv1.Subject{Kind: "User", Name: user}, role...); err != nil {
					t.Fatal(err)
				}
				kubeconfig, err := c.Kubeconfig(user)
				if err != nil {
					t.Fatal(err)
				}
				n := newNode(t, c)
				n.run(kubeconfig)
				// A streaming list is a watch, so that list is not requested unless
				// watch is refused.
				if verb == "list" {
					n.write(c.Client(), "10.244.1.2")
					n.answers(10*time.Second, "10.244.1.2")
					return
				}
				n.says(10*time.Second, fmt.Sprintf("cannot watch resource %q in API group %q", resource, group))
			})
		}
	}
}

// allow gives a user a role of its own.
func allow(ctx context.Context, client kubernetes.Interface, to rbacv1.Subject, rules ...rbacv1.PolicyRule) error {
	meta := metav1.ObjectMeta{Name: "test-" + to.Name}
	if _, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return bind(ctx, client, to, meta.Name)
}

func bind(ctx context.Context, client kubernetes.Interface, to rbacv1.Subject, role string) error {
	_, err := client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test-" + to.Name}, Subjects: []rbacv1.Subject{to},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
	}, metav1.CreateOptions{})
	return err
}

// TestTokenRenewed lets tandem use a service account's token from a file, as in
// a DaemonSet, makes that token worthless, and puts a new one into the file.
func TestTokenRenewed(t *testing.T) {
	c := start(t, cluster.Options{})
	n := newNode(t, c)
	n.write(c.Client(), "10.244.1.2")
	account := rbacv1.Subject{Kind: "ServiceAccount", Namespace: metav1.NamespaceSystem, Name: "kube-proxy"}
	if err := bind(t.Context(), c.Client(), account, "system:node-proxier"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	renew := func() {
		t.Helper()
		if err := token(t.Context(), c.Client(), account, file); err != nil {
			t.Fatal(err)
		}
	}
	renew()
	kubeconfig, err := c.TokenKubeconfig(file)
	if err != nil {
		t.Fatal(err)
	}
	n.run(kubeconfig)
	n.answers(10*time.Second, "10.244.1.2")

	accounts := c.Client().CoreV1().ServiceAccounts(account.Namespace)
	if err := accounts.Delete(t.Context(), account.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.KillServer() // the token of a running watch is not checked again
	if err := c.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.says(30*time.Second, "rejected the credentials")
	if got, err := n.reach(); err != nil || got != "10.244.1.2" {
		t.Errorf("with an invalid token %s answers (%v), want the last state", got, err)
	}
	renew()
	n.write(c.Client(), "10.244.1.3")
	took := n.answers(40*time.Second, "10.244.1.3")
	t.Logf("a new token is used after %s", took.Round(time.Millisecond))
}

// token writes a new token of a service account, which it makes if need be.
func token(ctx context.Context, client kubernetes.Interface, of rbacv1.Subject, file string) error {
	accounts := client.CoreV1().ServiceAccounts(of.Namespace)
	if _, err := accounts.Get(ctx, of.Name, metav1.GetOptions{}); err != nil {
		if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: of.Name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	got, err := accounts.CreateToken(ctx, of.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", []byte(got.Status.Token), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
