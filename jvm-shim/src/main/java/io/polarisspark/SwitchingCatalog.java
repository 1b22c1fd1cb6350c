package io.polarisspark;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Function;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.ViewCatalog;

/**
 * An Iceberg catalog that forwards calls to the catalog of the session's state. A loaded table continues to read and
 * write the state from which it was loaded, even if the session switches to another state.
 */
final class SwitchingCatalog implements InvocationHandler {
  /** Prefix of the states of transactions. Each of these states is used by one transaction only. */
  private static final String TRANSACTION = "@";

  private final SessionState state;
  private final Function<String, Catalog> open;
  private final Map<String, Catalog> opened = new ConcurrentHashMap<>();

  private SwitchingCatalog(SessionState state, Function<String, Catalog> open) {
    this.state = state;
    this.open = open;
  }

  /**
   * @param open opens the catalog of a state, which must implement all three interfaces
   */
  static Catalog of(SessionState state, Function<String, Catalog> open) {
    Class<?>[] interfaces = {Catalog.class, SupportsNamespaces.class, ViewCatalog.class};
    ClassLoader loader = SwitchingCatalog.class.getClassLoader();
    return (Catalog) Proxy.newProxyInstance(loader, interfaces, new SwitchingCatalog(state, open));
  }

  @Override
  public Object invoke(Object proxy, Method method, Object[] arguments) throws Throwable {
    try {
      return method.invoke(current(), arguments);
    } catch (InvocationTargetException e) {
      throw e.getCause();
    }
  }

  private Catalog current() {
    String name = state.name();
    opened.keySet().removeIf(other -> other.startsWith(TRANSACTION) && !other.equals(name));
    return opened.computeIfAbsent(name, open);
  }
}
