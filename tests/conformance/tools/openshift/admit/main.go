// Admits pods as the API server of OpenShift does: with its admission plugin for SecurityContextConstraints, after
// the plugin that adds the token of the service account, and with the real authorizer for roles.
//
// Standard input has `objects` (namespaces, service accounts, roles, bindings, constraints), the `namespace`, and
// `pods`, each with the name of the service account that creates it. For each pod, the output has the constraints
// that admitted it and the pod with the values that they set, or the refusal.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"log"
	"os"

	securityv1 "github.com/openshift/api/security/v1"
	"github.com/openshift/apiserver-library-go/pkg/securitycontextconstraints/sccadmission"
	"github.com/openshift/apiserver-library-go/pkg/securitycontextconstraints/sccdefaults"
	securityfake "github.com/openshift/client-go/security/clientset/versioned/fake"
	securityinformers "github.com/openshift/client-go/security/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	saidentity "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"
	rbacvalidation "k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

type input struct {
	Namespace string            `json:"namespace"`
	Objects   []json.RawMessage `json:"objects"`
	Pods      []struct {
		Creator string          `json:"creator"`
		Pod     json.RawMessage `json:"pod"`
	} `json:"pods"`
}

type output struct {
	Constraints string      `json:"constraints"`
	Reason      string      `json:"reason"`
	Pod         *corev1.Pod `json:"pod"`
}

type cluster struct {
	accounts, constraints admission.Interface
	namespace             string
}

func main() {
	quiet := flag.NewFlagSet("", flag.ExitOnError)
	klog.InitFlags(quiet)
	check(quiet.Parse([]string{"-logtostderr=false"}))
	var wanted input
	check(json.NewDecoder(os.Stdin).Decode(&wanted))
	capabilities.Setup(true, 0) // --allow-privileged, as OpenShift sets it
	in := newCluster(wanted)
	answers := []output{}
	for _, one := range wanted.Pods {
		answers = append(answers, in.admit(one.Pod, one.Creator))
	}
	check(json.NewEncoder(os.Stdout).Encode(answers))
}

func newCluster(wanted input) cluster {
	ctx := context.Background()
	kube, security := kubefake.NewSimpleClientset(), securityfake.NewSimpleClientset()
	var roles []*rbacv1.Role
	var roleBindings []*rbacv1.RoleBinding
	var clusterRoles []*rbacv1.ClusterRole
	var clusterRoleBindings []*rbacv1.ClusterRoleBinding
	for _, text := range wanted.Objects {
		var kind metav1.TypeMeta
		check(json.Unmarshal(text, &kind))
		switch kind.Kind {
		case "Namespace":
			_, err := kube.CoreV1().Namespaces().Create(ctx, read[corev1.Namespace](text), metav1.CreateOptions{})
			check(err)
		case "ServiceAccount":
			account := read[corev1.ServiceAccount](text)
			_, err := kube.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, account, metav1.CreateOptions{})
			check(err)
		case "SecurityContextConstraints":
			constraints := read[securityv1.SecurityContextConstraints](text)
			sccdefaults.SetDefaults_SCC(constraints)
			_, err := security.SecurityV1().SecurityContextConstraints().Create(ctx, constraints, metav1.CreateOptions{})
			check(err)
		case "Role":
			roles = append(roles, read[rbacv1.Role](text))
		case "RoleBinding":
			roleBindings = append(roleBindings, read[rbacv1.RoleBinding](text))
		case "ClusterRole":
			clusterRoles = append(clusterRoles, read[rbacv1.ClusterRole](text))
		case "ClusterRoleBinding":
			clusterRoleBindings = append(clusterRoleBindings, read[rbacv1.ClusterRoleBinding](text))
		}
	}
	_, static := rbacvalidation.NewTestRuleResolver(roles, roleBindings, clusterRoles, clusterRoleBindings)
	kubeInformers := informers.NewSharedInformerFactory(kube, 0)
	securityInformers := securityinformers.NewSharedInformerFactory(security, 0)

	accounts := serviceaccount.NewServiceAccount()
	accounts.SetExternalKubeClientSet(kube)
	accounts.SetExternalKubeInformerFactory(kubeInformers)
	constraints := sccadmission.NewConstraint()
	constraints.SetAuthorizer(rbac.New(static, static, static, static))
	constraints.SetExternalKubeInformerFactory(kubeInformers)
	constraints.SetSecurityInformers(securityInformers.Security().V1().SecurityContextConstraints())
	check(constraints.ValidateInitialization())
	kubeInformers.Start(ctx.Done())
	securityInformers.Start(ctx.Done())
	kubeInformers.WaitForCacheSync(ctx.Done())
	securityInformers.WaitForCacheSync(ctx.Done())
	return cluster{accounts: accounts, constraints: constraints, namespace: wanted.Namespace}
}

// admit sets defaults, runs both steps of admission and then the validation of the API server.
func (c cluster) admit(text []byte, creator string) output {
	pod := &core.Pod{}
	check(runtime.DecodeInto(legacyscheme.Codecs.UniversalDecoder(), text, pod))
	pod.Namespace = c.namespace
	// Authentication adds a group. The plugin also checks the account of the pod, without this group.
	user := saidentity.UserInfo(c.namespace, creator, "").(*user.DefaultInfo)
	user.Groups = append(user.Groups, "system:authenticated")
	attributes := admission.NewAttributesRecord(
		pod, nil, core.Kind("Pod").WithVersion("version"), c.namespace, pod.Name,
		core.Resource("pods").WithVersion("version"), "", admission.Create, nil, false, user,
	)
	for _, plugin := range []admission.Interface{c.accounts, c.constraints} {
		if err := plugin.(admission.MutationInterface).Admit(context.Background(), attributes, nil); err != nil {
			return output{Reason: err.Error()}
		}
	}
	for _, plugin := range []admission.Interface{c.accounts, c.constraints} {
		if err := plugin.(admission.ValidationInterface).Validate(context.Background(), attributes, nil); err != nil {
			return output{Reason: err.Error()}
		}
	}
	options := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
	if errs := validation.ValidatePodCreate(pod, options); len(errs) > 0 {
		return output{Reason: errs.ToAggregate().Error()}
	}
	admitted := &corev1.Pod{}
	check(legacyscheme.Scheme.Convert(pod, admitted, nil))
	return output{Constraints: pod.Annotations[securityv1.ValidatedSCCAnnotation], Pod: admitted}
}

func read[T any](text []byte) *T {
	found := new(T)
	check(json.Unmarshal(text, found))
	return found
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
