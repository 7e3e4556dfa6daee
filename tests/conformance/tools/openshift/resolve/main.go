// Resolves a subscription with the resolver of OLM: prints what an installed version upgrades to.
//
//	resolve CATALOG PACKAGE CHANNEL <<<CSV
//
// CATALOG is a directory with a declarative catalog. The ClusterServiceVersion on standard input is installed; an
// empty input stands for a new installation. The catalog is served and read over gRPC, as on a cluster.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"net"
	"os"

	operatorsv1 "github.com/operator-framework/api/pkg/operators/v1"
	"github.com/operator-framework/api/pkg/operators/v1alpha1"
	"github.com/operator-framework/operator-lifecycle-manager/pkg/api/client/clientset/versioned/fake"
	listersv1 "github.com/operator-framework/operator-lifecycle-manager/pkg/api/client/listers/operators/v1"
	listers "github.com/operator-framework/operator-lifecycle-manager/pkg/api/client/listers/operators/v1alpha1"
	"github.com/operator-framework/operator-lifecycle-manager/pkg/controller/registry"
	"github.com/operator-framework/operator-lifecycle-manager/pkg/controller/registry/resolver"
	"github.com/operator-framework/operator-lifecycle-manager/pkg/lib/operatorlister"
	"github.com/operator-framework/operator-registry/pkg/api"
	registrycache "github.com/operator-framework/operator-registry/pkg/cache"
	"github.com/operator-framework/operator-registry/pkg/client"
	"github.com/operator-framework/operator-registry/pkg/server"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

const namespace = "operators"

var catalog = registry.CatalogKey{Name: "catalog", Namespace: namespace}

// catalogs has one client, that of the catalog.
type catalogs struct{ client client.Interface }

func (c catalogs) ClientsForNamespaces(...string) map[registry.CatalogKey]client.Interface {
	return map[registry.CatalogKey]client.Interface{catalog: c.client}
}

func main() {
	directory, packageName, channel := os.Args[1], os.Args[2], os.Args[3]
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	subscription := &v1alpha1.Subscription{
		ObjectMeta: metav1.ObjectMeta{Name: packageName, Namespace: namespace},
		Spec: &v1alpha1.SubscriptionSpec{
			CatalogSource: catalog.Name, CatalogSourceNamespace: catalog.Namespace, Package: packageName, Channel: channel,
		},
	}
	csvs, subscriptions, groups := indexer(), indexer(), indexer()
	if installed := readInstalled(); installed != nil {
		subscription.Status.InstalledCSV, subscription.Status.CurrentCSV = installed.Name, installed.Name
		check(csvs.Add(installed))
	}
	check(subscriptions.Add(subscription))
	check(groups.Add(&operatorsv1.OperatorGroup{ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: namespace}}))
	lister := operatorlister.NewLister()
	lister.OperatorsV1alpha1().RegisterClusterServiceVersionLister(namespace, listers.NewClusterServiceVersionLister(csvs))
	lister.OperatorsV1alpha1().RegisterSubscriptionLister(namespace, listers.NewSubscriptionLister(subscriptions))
	lister.OperatorsV1().RegisterOperatorGroupLister(namespace, listersv1.NewOperatorGroupLister(groups))

	sources := resolver.SourceProviderFromRegistryClientProvider(catalogs{serve(directory)}, logger)
	steps := resolver.NewOperatorStepResolver(lister, fake.NewSimpleClientset(subscription), namespace, sources, logger)
	_, bundles, _, err := steps.ResolveSteps(namespace)
	result := map[string]any{"error": "", "installs": []string{}}
	if err != nil {
		result["error"] = err.Error()
	}
	for _, one := range bundles {
		result["installs"] = append(result["installs"].([]string), one.Identifier)
		result["replaces"] = one.Replaces
	}
	check(json.NewEncoder(os.Stdout).Encode(result))
}

func indexer() cache.Indexer {
	return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

func readInstalled() *v1alpha1.ClusterServiceVersion {
	text, err := io.ReadAll(os.Stdin)
	check(err)
	if len(text) == 0 {
		return nil
	}
	found := &v1alpha1.ClusterServiceVersion{}
	check(json.Unmarshal(text, found))
	found.Namespace = namespace
	return found
}

func serve(directory string) client.Interface {
	temporary, err := os.MkdirTemp("", "catalog-")
	check(err)
	defer os.RemoveAll(temporary) // the cache has it open
	store, err := registrycache.New(temporary)
	check(err)
	check(registrycache.LoadOrRebuild(context.Background(), store, os.DirFS(directory)))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	grpcServer := grpc.NewServer()
	api.RegisterRegistryServer(grpcServer, server.NewRegistryServer(store))
	go grpcServer.Serve(listener)
	found, err := client.NewClient(listener.Addr().String())
	check(err)
	return found
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
